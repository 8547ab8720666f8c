// The card check's worker: a process of its own, so that a kernel that hangs or breaks the device costs an item and not
// the run. It reads a CheckRequest from its standard input, makes every item that is not among `found`, and says on its
// standard output, a JSON object a line, what it begins and what it has found; supervise() is the other end.
//
//   {"begin": item}                          this item is being made
//   {"begin": item, "way": {...}}            ... of a product, in this way
//   {"trial": item, "way": {...}, ...}       how that way did
//   {"end": item, "finding": {...}}          what came of it
//   {"done": true}
#pragma once
#include <functional>
#include <string>

#include "llmc/check/findings.h"

namespace llmc {

constexpr const char* kWorkerArgument = "--worker";  // of `train_gpt check`

// The worker's main(). `use_of` derives the kernels to check from CheckRequest::run.
ExitCode check_worker(const std::function<KernelUse(const std::string& run)>& use_of);

// Runs workers, one after the other, until every item has been made: an item, or a way of making a product, in which
// the worker ends or stands still for `item_seconds` has that for a problem, and another worker goes on behind it.
// `program`: what to run with {"check", kWorkerArgument}. `alive` is called now and then.
Findings supervise(const CheckRequest& request, const std::string& program, const std::function<void()>& alive);

}  // namespace llmc

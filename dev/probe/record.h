// One case and its outcome as JSON, and who measured it.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "dev/probe/runner.h"

namespace llmc::probe {

nlohmann::ordered_json record_of(const Case& c, const Outcome& outcome);
// A case that ended in an exception, or never: no number of it is known.
nlohmann::ordered_json failed_record(const Case& c, const std::string& status);
// Date, command, card, driver, versions. Without a GPU "measured" is false: the host device's times mean nothing.
nlohmann::ordered_json header_of(const std::string& command);

}  // namespace llmc::probe

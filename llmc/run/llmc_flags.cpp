#include "llmc/run/llmc_flags.h"

#include "llmc/device/error.h"

namespace llmc {
namespace {

struct Answer {
    const char* flag;
    const char* meaning;  // in llm.c
    const char* here;
};

const Answer kAnswers[] = {
    {"-nk", "checkpoints to keep", "use --keep"},
    {"-nm", "major checkpoints", "use --keep-every, in steps"},
    {"-w", "keep FP32 master weights", "they are always kept; leave it out"},
    {"-f", "allow TF32", "use --tf32 to allow it; off is the default"},
    {"-ge", "GELU fusion", "there is nothing to choose; leave it out"},
    {"-a", "overfit one batch", "train on a shard as small as one batch"},
    {"-sl", "skip steps with an outlying loss", "use --skip-spikes, with limits of its own"},
    {"-sg", "skip steps with an outlying gradient norm", "use --skip-spikes, with limits of its own"},
    {"-lg", "GPU information in the log", "this version has no such log; leave it out"},
    {"-pn", "number of processes", "the launcher (mpirun, srun) says how many there are; leave it out"},
    {"-pr", "process rank", "the launcher (mpirun, srun) says it; leave it out"},
    {"-pg", "GPUs per node", "found by itself; leave it out"},
    {"-pi", "how to initialize NCCL", "found by itself; leave it out"},
    {"-pm", "how to initialize NCCL", "found by itself; leave it out"},
    {"-ps", "server address", "the launcher says it; leave it out"},
    {"-pf", "file-system path", "the launcher says it; leave it out"},
    {"-pp", "file-system path", "the launcher says it; leave it out"},
};

bool is_integer(const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

std::optional<std::string> answer_llmc_flag(const std::string& flag, const std::string& value) {
    if (flag == "-h") {
        if (!is_integer(value)) return std::nullopt;  // -h is help
        return strprintf("-h %s is llm.c's HellaSwag evaluation: use --hellaswag FILE; -h alone is help",
                         value.c_str());
    }
    if (flag == "-y" && (value == "0" || value == "1"))
        return strprintf(
            "-y %s is llm.c's; here it is --resume latest, or auto, which begins a new run where there is no "
            "checkpoint yet; a run without --resume begins anew",
            value.c_str());
    for (const Answer& answer : kAnswers) {
        if (flag == answer.flag)
            return strprintf("%s is a flag of llm.c (%s) but not of this program: %s", answer.flag, answer.meaning,
                             answer.here);
    }
    return std::nullopt;
}

}  // namespace llmc

// Writes run.json.
#include "llmc/run/run_json.h"

#include <filesystem>

#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/log/versions.h"
#include "llmc/model/model_file.h"

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace llmc {

void write_run_json(const RunDirectory& directory, const Options& options, const RunFacts& facts) {
    if (!directory.active()) return;
    const ModelConfig& m = options.model_config;
    const ordered_json versions = versions_json();
    const std::string path = directory.file("run.json");
    if (facts.resumed_at >= 0 && fs::exists(path)) {
        ordered_json run = read_run_json(directory.path());
        if (!run.is_object()) run = ordered_json::object();
        if (!run["resumed"].is_array()) run["resumed"] = ordered_json::array();  // not yet there, or of other hands
        run["resumed"].push_back({{"date", utc_now()},
                                  {"step", facts.resumed_at},
                                  {"command", options.command_line},
                                  {"world", facts.world},
                                  {"device", facts.device},
                                  {"kernels", options.kernel_set.names()},
                                  {"versions", versions},
                                  {"weights_hash", facts.weights_hash},
                                  {"card_check", facts.card_check},
                                  {"products", facts.products}});
        if (run["first_checkpoint"].is_null()) run["first_checkpoint"] = facts.resumed_at;
        run["config"] = parse_json<ordered_json>(config_json(options));
        return write_file(path, json_text(run, 2) + "\n");
    }
    ordered_json run;
    run["run_id"] = facts.run_id;
    run["first_checkpoint"] = nullptr;  // its step; note_checkpoint()
    run["date"] = utc_now();
    run["command"] = options.command_line;
    run["world"] = facts.world;
    run["device"] = facts.device;
    run["kernels"] = options.kernel_set.names();
    run["versions"] = versions;
    run["model"] = {{"name", m.name},       {"layers", m.layers},
                    {"heads", m.heads},     {"channels", m.channels},
                    {"vocab", m.vocab},     {"padded_vocab", m.padded_vocab()},
                    {"context", m.context}, {"parameters", m.parameters()}};
    if (m.architecture != &kGpt2) run["model"].update(model_json(m));
    run["micro_steps"] = options.micro_steps;
    run["weights_hash"] = facts.weights_hash;
    run["card_check"] = facts.card_check;
    run["products"] = facts.products;
    run["config"] = parse_json<ordered_json>(config_json(options));
    write_file(path, json_text(run, 2) + "\n");
}

}  // namespace llmc

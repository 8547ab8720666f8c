// The run's newest numbers in Prometheus's text format, for the textfile collector of its node exporter: a file under
// its last name is always whole.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace llmc {

class PrometheusFile {
public:
    // `run`: the value of every number's label "run"; "": no such label. Writes the file, yet without numbers: a place
    // that cannot be written is Error(bad_flags).
    PrometheusFile(const std::string& file, const std::string& run);

    // Takes a record of metrics.jsonl and writes the file again. When that fails, says so once, and the run goes on.
    void write(const nlohmann::ordered_json& record);

private:
    std::string text() const;

    const std::string file_;
    std::string labels_;                                            // run="...", or nothing
    std::map<std::string, std::map<std::string, double>> numbers_;  // {metric: {name of a validation set: value}}
    bool failed_ = false;
};

}  // namespace llmc

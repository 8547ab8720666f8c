// The probe's result file: a JSON object whose last member, "records", is an array with one record per line. It is
// valid JSON after every record, so a killed run leaves its results, and the next run continues.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

namespace llmc::probe {

class ResultFile {
public:
    // Continues the file at `path`, or creates it with this header. Refuses a file whose header has another value for
    // one of the fields in `same`: its numbers come from another card or another version of cuBLASLt.
    ResultFile(const std::string& path, const nlohmann::ordered_json& header, const std::vector<std::string>& same);
    ~ResultFile();
    ResultFile(const ResultFile&) = delete;
    ResultFile& operator=(const ResultFile&) = delete;

    bool has(const std::string& key) const { return keys_.count(key) != 0; }
    size_t count() const { return keys_.size(); }
    // Appends a record, which must have a string "case", its key. The record is on disk when this returns.
    void append(const nlohmann::ordered_json& record);
    bool continued() const { return continued_; }

private:
    void write_at_end(const std::string& text);

    std::string path_;
    std::set<std::string> keys_;
    int file_ = -1;
    size_t end_ = 0;  // the position of the final "\n]}\n"
    bool continued_ = false;
};

}  // namespace llmc::probe

// The probe's file of results: a JSON object whose last member, "records", is an array with one record a line. It is
// valid JSON after every record, so a run that is killed leaves what it has, and the next one continues.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

namespace llmc::probe {

class ResultFile {
public:
    // Continues the file at `path`, or starts it with this header. Refuses a file whose header names other values for
    // one of `same` (its numbers are of another card, or another version of cuBLASLt).
    ResultFile(const std::string& path, const nlohmann::ordered_json& header, const std::vector<std::string>& same);
    ~ResultFile();
    ResultFile(const ResultFile&) = delete;
    ResultFile& operator=(const ResultFile&) = delete;

    bool has(const std::string& key) const { return keys_.count(key) != 0; }
    size_t count() const { return keys_.size(); }
    // The record must have a "case" string, its key. On disk when this returns.
    void append(const nlohmann::ordered_json& record);
    bool continued() const { return continued_; }

private:
    void write_at_end(const std::string& text);

    std::string path_;
    std::set<std::string> keys_;
    int file_ = -1;
    size_t end_ = 0;  // where "\n]}\n" starts
    bool continued_ = false;
};

}  // namespace llmc::probe

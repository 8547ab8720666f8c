// Reads, continues and appends to the probe's result file (result_file.h).
#include "dev/probe/result_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"

namespace llmc::probe {
namespace {

using nlohmann::ordered_json;
constexpr const char* kEnd = "\n]}\n";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    throw Error(ExitCode::failure, "{}: {}", path, why);
}

// The header's object as text, up to and including "records":[
std::string opening(ordered_json header) {
    header["records"] = ordered_json::array();
    const std::string text = json_text(header);
    return text.substr(0, text.size() - 2);  // without "]}"
}

}  // namespace

// Reads line by line: if the file was truncated, its whole lines count.
ResultFile::ResultFile(const std::string& path, const ordered_json& header, const std::vector<std::string>& same)
    : path_(path) {
    std::string first = opening(header), line;
    std::vector<std::string> records;
    if (std::ifstream old(path); old && std::getline(old, line)) {
        const ordered_json found = parse_json_or_null(line + "]}");
        if (!found.contains("records")) refuse(path, "is not a file of results; name another");
        for (const std::string& field : same)
            if (found.value(field, ordered_json()) != header.value(field, ordered_json()))
                refuse(path, fmt::format("has results with {} {}, and this is {}; name another file", field,
                                         json_text(found.value(field, ordered_json())),
                                         json_text(header.value(field, ordered_json()))));
        first = line;
        continued_ = true;
        while (std::getline(old, line)) {
            if (!line.empty() && line.back() == ',') line.pop_back();
            const ordered_json record = parse_json_or_null(line);
            if (!record.contains("case")) break;
            if (keys_.insert(record["case"].get<std::string>()).second) records.push_back(line);
        }
    }
    const std::string fresh = path + ".new";
    file_ = open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) refuse(fresh, fmt::format("cannot be written: {}", std::strerror(errno)));
    std::string text = first;
    for (size_t i = 0; i < records.size(); i++) text += (i ? ",\n" : "\n") + records[i];
    write_at_end(text);
    if (std::rename(fresh.c_str(), path.c_str()) != 0) refuse(path, std::strerror(errno));
}

ResultFile::~ResultFile() { close(file_); }

// Writes the record and the closing brackets with one write(), so that readers always see a complete file.
void ResultFile::write_at_end(const std::string& text) {
    const std::string all = text + kEnd;
    for (size_t done = 0; done < all.size();) {
        const ssize_t n = pwrite(file_, all.data() + done, all.size() - done, static_cast<off_t>(end_ + done));
        if (n < 0) refuse(path_, fmt::format("cannot be written: {}", std::strerror(errno)));
        done += static_cast<size_t>(n);
    }
    end_ += text.size();
}

void ResultFile::append(const ordered_json& record) {
    write_at_end((keys_.empty() ? "\n" : ",\n") + json_text(record));
    keys_.insert(record.at("case").get<std::string>());
}

}  // namespace llmc::probe

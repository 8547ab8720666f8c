// The run's numbers for TensorBoard, whose event files are records of TFRecord's framing (length, masked CRC-32C, data,
// masked CRC-32C) that each hold a protocol buffer "Event". Scalars bear the names of metrics.jsonl: loss, val_loss,
// products/fp8, fp8/h.0.qkv.x/amax.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmc {

class TensorBoardFile {
public:
    // A new event file in `directory`, which is made if need be; its name sorts after all others there. Of what they
    // hold, TensorBoard leaves out the steps from `purge_step` on (-1: none), which a resumed run makes again. What is
    // in the way is Error(bad_flags), Error(no_resources) or Error(failure).
    TensorBoardFile(const std::string& directory, int64_t purge_step);

    // A record of metrics.jsonl, flushed; nothing where it has no scalars.
    void write(const nlohmann::ordered_json& record);

private:
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };

    void write_event(const std::string& event);

    std::string name_;
    std::unique_ptr<std::FILE, Close> file_;
};

// The numbers of a record that belong to its step, with their names: its own, those of "products" and of every FP8
// tensor. What is not finite in "nonfinite" is NaN or infinite here.
std::vector<std::pair<std::string, double>> scalars_of(const nlohmann::ordered_json& record);

uint32_t crc32c(std::string_view data);

}  // namespace llmc

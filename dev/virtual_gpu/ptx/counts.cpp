// Collects and prints the counts of kernels (counts.h).
#include "dev/virtual_gpu/ptx/counts.h"

#include <sys/file.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/occupancy.h"

namespace virtual_gpu {

const char* const kKindNames[kKinds] = {"move",   "integer", "float32", "float64",   "convert", "special",
                                        "tensor", "shared",  "global",  "parameter", "barrier", "control"};

namespace {

void add_to(OpCounts& to, const OpCounts& c) {
    to.runs += c.runs;
    to.lanes += c.lanes;
    to.bytes += c.bytes;
    to.requests += c.requests;
    to.sectors += c.sectors;
    to.passes += c.passes;
    to.conflicts += c.conflicts;
}

// "meet" and "low half" are not in the PTX text.
bool is_instruction(const Code& code, size_t i) { return code.opcodes[i] != "meet" && code.opcodes[i] != "low half"; }

// The operand type and the additions and multiplications of one warp's product: 2 m n k of mma.sync, and a quarter of
// that of wgmma, which four warps issue together. Zero for the other wgmma instructions. decode() accepts no other
// form.
std::pair<std::string, uint64_t> tensor_operation(const std::string& opcode) {
    unsigned m = 0, n = 0, k = 0;
    char type[8] = "";
    if (std::sscanf(opcode.c_str(), "mma.sync.aligned.m%un%uk%u.row.col.f32.%7[a-z0-9]", &m, &n, &k, type) == 4)
        return {type, uint64_t{2} * m * n * k};
    if (std::sscanf(opcode.c_str(), "wgmma.mma_async.sync.aligned.m%un%uk%u.f32.%7[a-z0-9]", &m, &n, &k, type) == 4)
        return {type, uint64_t{2} * m * n * k / 4};
    return {type, 0};
}

struct Sums {
    uint64_t launches = 0, blocks = 0, threads = 0;
    double seconds = 0;
    OpCounts all;
    std::array<uint64_t, kKinds> kinds{};               // warp instructions
    std::map<std::string, uint64_t> tensor_operations;  // additions and multiplications by operand type

    void add(const Sums& s) {
        launches += s.launches;
        blocks += s.blocks;
        threads += s.threads;
        seconds += s.seconds;
        add_to(all, s.all);
        for (size_t i = 0; i < kinds.size(); i++) kinds[i] += s.kinds[i];
        for (const auto& [type, n] : s.tensor_operations) tensor_operations[type] += n;
    }
};

using Shape = std::array<uint32_t, 7>;  // grid, block, dynamic shared bytes

struct KernelCounts {
    std::vector<OpCounts> ops;
    std::map<Shape, Sums> shapes;
};

std::map<const Kernel*, KernelCounts>& all() {
    static auto* const counts = new std::map<const Kernel*, KernelCounts>;
    return *counts;
}

nlohmann::json words(const Sums& s) {
    std::map<std::string, uint64_t> kinds;
    for (size_t i = 0; i < s.kinds.size(); i++)
        if (s.kinds[i]) kinds[kKindNames[i]] = s.kinds[i];
    return {{"launches", s.launches},
            {"blocks", s.blocks},
            {"threads", s.threads},
            {"seconds", s.seconds},
            {"warp_instructions", s.all.runs},
            {"thread_instructions", s.all.lanes},
            {"instructions", kinds},
            {"mma", s.kinds[static_cast<size_t>(Kind::tensor)]},
            {"tensor_operations", s.tensor_operations},
            {"global_bytes", s.all.bytes},
            {"global_requests", s.all.requests},
            {"global_sectors", s.all.sectors},
            {"shared_passes", s.all.passes},
            {"shared_conflicts", s.all.conflicts}};
}

nlohmann::json words(const Kernel& kernel, const Shape& shape, const Sums& sums) {
    nlohmann::json j = words(sums);
    const uint64_t grid = uint64_t{shape[0]} * shape[1] * shape[2];
    const Occupancy occupancy =
        occupancy_of(kernel.registers, shape[3] * shape[4] * shape[5], uint64_t{kernel.shared_bytes} + shape[6]);
    j["grid"] = {shape[0], shape[1], shape[2]};
    j["block"] = {shape[3], shape[4], shape[5]};
    j["dynamic_shared_bytes"] = shape[6];
    j["blocks_a_multiprocessor"] = occupancy.blocks;
    j["occupancy_limit"] = occupancy.limit;
    j["waves"] = occupancy.waves(grid);
    return j;
}

nlohmann::json words(const Kernel& kernel, const KernelCounts& k) {
    const Code& code = *kernel.code;
    nlohmann::json unseen = nlohmann::json::array(), shapes = nlohmann::json::array();
    size_t lines = 0;
    for (size_t i = 0; i < k.ops.size(); i++) {
        if (!is_instruction(code, i)) continue;
        lines++;
        if (k.ops[i].runs == 0) unseen.push_back(code.ops[i].line);
    }
    Sums sum;
    for (const auto& [shape, sums] : k.shapes) {
        sum.add(sums);
        shapes.push_back(words(kernel, shape, sums));
    }
    nlohmann::json j = words(sum);
    j["kernel"] = kernel.readable;
    j["name"] = kernel.name;
    j["card"] = card().name;
    j["registers"] = kernel.registers;
    j["static_shared_bytes"] = kernel.shared_bytes;
    j["ptx_lines"] = lines;
    j["ptx_lines_not_run"] = unseen;
    j["shapes"] = shapes;
    return j;
}

}  // namespace

// Appends, since several processes may write to one file: each writes all its lines at once.
void write_counts(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "a");
    if (!file) {
        std::fprintf(stderr, "virtual GPU: cannot write %s\n", path.c_str());
        return;
    }
    flock(fileno(file), LOCK_EX);
    for (const auto& [kernel, counts] : all())
        if (kernel->code) std::fprintf(file, "%s\n", words(*kernel, counts).dump().c_str());
    write_work(file);
    std::fclose(file);
}

LaunchCounter::LaunchCounter(const Launch& launch) : launch_(launch), begin_(std::chrono::steady_clock::now()) {}

void LaunchCounter::add(const Block& block) {
    ops_.resize(block.counts.size());
    for (size_t i = 0; i < ops_.size(); i++) add_to(ops_[i], block.counts[i]);
}

// A failed launch is counted up to the failure.
LaunchCounter::~LaunchCounter() {
    if (!counting()) return;
    const Code& code = *launch_.kernel->code;
    Sums sums;
    sums.launches = 1;
    sums.blocks = uint64_t{launch_.grid[0]} * launch_.grid[1] * launch_.grid[2];
    sums.threads = sums.blocks * launch_.block[0] * launch_.block[1] * launch_.block[2];
    KernelCounts& k = all()[launch_.kernel];
    k.ops.resize(code.ops.size());
    for (size_t i = 0; i < ops_.size(); i++) {
        add_to(k.ops[i], ops_[i]);
        if (!is_instruction(code, i)) continue;
        add_to(sums.all, ops_[i]);
        sums.kinds[static_cast<size_t>(code.ops[i].kind)] += ops_[i].runs;
        if (code.ops[i].kind != Kind::tensor) continue;
        const auto& [type, operations] = tensor_operation(code.opcodes[i]);
        if (operations > 0) sums.tensor_operations[type] += operations * ops_[i].runs;
    }
    sums.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    k.shapes[{launch_.grid[0], launch_.grid[1], launch_.grid[2], launch_.block[0], launch_.block[1], launch_.block[2],
              launch_.dynamic_shared_bytes}]
        .add(sums);
}

}  // namespace virtual_gpu

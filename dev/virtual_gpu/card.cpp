// The table of cards that the virtual GPU can simulate.
#include "dev/virtual_gpu/card.h"

#include "dev/virtual_gpu/options.h"

namespace virtual_gpu {
namespace {

constexpr size_t GiB = size_t{1} << 30, MiB = size_t{1} << 20;
constexpr int KiB = 1024;

constexpr Card kCards[] = {
    {"sm_80", "NVIDIA A100-SXM4-80GB", 80, 108, 80 * GiB, 40 * MiB, 163 * KiB, 164 * KiB, 2048, 32, 1410000, 1593000,
     5120},
    {"sm_89", "NVIDIA GeForce RTX 4090", 89, 128, 24 * GiB, 72 * MiB, 99 * KiB, 100 * KiB, 1536, 24, 2520000, 10501000,
     384},
    {"sm_90a", "NVIDIA H100 80GB HBM3", 90, 132, 80 * GiB, 50 * MiB, 227 * KiB, 228 * KiB, 2048, 32, 1980000, 2619000,
     5120},
    {"sm_100", "NVIDIA B200", 100, 148, 180 * GiB, 126 * MiB, 227 * KiB, 228 * KiB, 2048, 32, 1965000, 3996000, 8192},
    {"sm_120", "NVIDIA GeForce RTX 5090", 120, 170, 32 * GiB, 96 * MiB, 99 * KiB, 100 * KiB, 1536, 24, 2407000,
     14001000, 512},
};

}  // namespace

const Card* find_card(const std::string& name) {
    for (const Card& c : kCards)
        if (c.name == name) return &c;
    return nullptr;
}

const Card& card() {
    static const Card played = [] {
        Card chosen = *find_card(options().card);
        if (const int fewer = options().multiprocessors) {
            chosen.l2_bytes =
                chosen.l2_bytes / static_cast<size_t>(chosen.multiprocessors) * static_cast<size_t>(fewer);
            chosen.multiprocessors = fewer;
        }
        return chosen;
    }();
    return played;
}

}  // namespace virtual_gpu

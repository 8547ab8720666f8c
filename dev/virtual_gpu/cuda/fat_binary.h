// The container that nvcc leaves in a program for each source file: PTX as text and code for architectures (cubins, ELF
// files), of which the driver takes what fits the card. The virtual GPU runs PTX alone; of a cubin it takes how many
// registers each kernel has.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dev/virtual_gpu/card.h"

namespace virtual_gpu {

struct Image {
    bool is_cubin;   // otherwise PTX
    int capability;  // 90
    char suffix;     // 'a': this capability alone; 'f': its family; 0
    bool compressed;
    std::string_view bytes;  // of PTX without the zeros at its end
};
std::string name_of(const Image& image);  // sm_90a, compute_90a

// All images of a container. Throws Fault where it is none.
std::vector<Image> read_fat_binary(const void* data);

// What runs on a card: `ptx` empty and a reason in `missing` where it cannot be run here, both empty where the fat
// binary has nothing for the card.
struct Choice {
    std::string_view ptx, cubin;
    int capability = 0;     // of the code
    bool compiled = false;  // from PTX, when the program is loaded
    std::string missing;
};
Choice choose_image(const std::vector<Image>& images, int card_capability);

// Registers a thread of each kernel.
std::map<std::string, int> registers_of(std::string_view cubin);

}  // namespace virtual_gpu

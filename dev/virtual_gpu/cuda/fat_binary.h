// The container that nvcc embeds in a program for each source file: PTX as text, and cubins (ELF files with code for
// one architecture). The driver takes the image that fits the card. The virtual GPU only runs PTX; from cubins it takes
// each kernel's number of registers.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dev/virtual_gpu/card.h"

namespace virtual_gpu {

struct Image {
    bool is_cubin;   // false for PTX
    int capability;  // 90
    char suffix;     // 'a' for this capability only, 'f' for its family, or 0
    bool compressed;
    std::string_view bytes;  // for PTX without the zeros at its end
};
std::string name_of(const Image& image);  // for example sm_90a or compute_90a

// Returns all images of a container. Throws Fault if it is not one.
std::vector<Image> read_fat_binary(const void* data);

// The images that run on a card. `ptx` is empty, with the reason in `missing`, if the code cannot be run here. Both are
// empty if the fat binary has nothing for the card.
struct Choice {
    std::string_view ptx, cubin;
    int capability = 0;     // of the code
    bool compiled = false;  // compiled from PTX when the program is loaded
    std::string missing;
};
Choice choose_image(const std::vector<Image>& images, int card_capability);

// Registers per thread of each kernel.
std::map<std::string, int> registers_of(std::string_view cubin);

}  // namespace virtual_gpu

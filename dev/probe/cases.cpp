// Lists the products that the probe runs, with their names and error limits.
#include "dev/probe/cases.h"

#include <algorithm>

#include "llmc/model/config.h"

namespace llmc::probe {
namespace {

struct Layer {
    std::string model, name;
    int C, OC;
};

// The tokens of a micro-batch. Users may ask for numbers that are not multiples of 128 or of 16.
struct Tokens {
    int N;
    bool everything;  // true for every combination, false for those that training uses
};
const Tokens kTokens[] = {{16384, true}, {1040, true}, {1000, true}, {4096, false}, {1001, false}};
const Tokens kTinyTokens[] = {{128, true}, {48, true}, {20, true}, {33, false}};

std::vector<Layer> layers_of(const std::string& model, int C, int padded_vocab) {
    return {{model, "qkv", C, 3 * C},
            {model, "attn_proj", C, C},
            {model, "fc", C, 4 * C},
            {model, "fc_proj", 4 * C, C},
            {model, "lm_head", C, padded_vocab}};
}

std::vector<Layer> all_layers(Shapes shapes) {
    if (shapes == Shapes::tiny) return {{"tiny", "fc", 128, 256}, {"tiny", "odd", 80, 64}};
    const struct {
        const char *name, *config;
    } models[] = {{"124M", "d12"}, {"355M", "d24"}, {"774M", "d36"}, {"1558M", "d48"}, {"6.7B", "gpt3-6.7b"}};
    std::vector<Layer> all;
    for (const auto& model : models) {
        const ModelConfig config = find_model(model.config);
        for (const Layer& layer : layers_of(model.name, config.channels, config.padded_vocab())) all.push_back(layer);
    }
    return all;
}

// True if train_gpt makes this product in some recipe (see Gpt2's linear layers). The head has no bias, and in FP8
// (--fp8-layers +lm_head) a forward product in BF16 and only tensor scales.
bool is_used(const Layer& layer, const Case& c) {
    const Product& p = c.product;
    const bool head = layer.name == "lm_head";
    if (!c.in_matmul() || (head && p.has_block_scales())) return false;
    const bool adds = layer.name.ends_with("_proj");  // to the residual stream
    if (p.kind == Product::forward)
        return p.bias != head && p.accumulate == adds && (!is_fp8(p.type) || (!head && c.fast != p.has_block_scales()));
    return !p.bias && !c.fast;
}

// All combinations for a layer and a number of tokens.
std::vector<Case> combinations(const Layer& layer, int N) {
    std::vector<Case> cases;
    for (const auto kind : {Product::forward, Product::dgrad, Product::wgrad})
        for (const auto type : {OperandType::bf16, OperandType::e4m3, OperandType::e5m2_e4m3})
            for (const auto scaling : {Fp8Scaling::tensor, Fp8Scaling::block})
                for (const bool fast : {true, false})
                    for (const bool bias : {false, true})
                        for (const bool accumulate : {false, true}) {
                            if (!is_fp8(type) && (fast || scaling != Fp8Scaling::tensor)) continue;
                            Case c{layer.model, layer.name,
                                   Product{kind, type, N, layer.C, layer.OC, bias, accumulate, scaling}, fast};
                            c.used = is_used(layer, c);
                            cases.push_back(c);
                        }
    return cases;
}

}  // namespace

Shapes shapes_from_name(const std::string& name) {
    if (name == "layers") return Shapes::layers;
    if (name == "tiny") return Shapes::tiny;
    throw Error(ExitCode::bad_flags, "--shapes {}: expected layers or tiny", name);
}

const char* Case::mode() const { return !is_fp8(product.type) ? "-" : fast ? "fast" : "split"; }
const char* Case::scaling() const {
    return !is_fp8(product.type) ? "-" : product.has_block_scales() ? "block" : "tensor";
}
const char* Case::kind() const {
    return product.kind == Product::forward ? "forward" : product.kind == Product::dgrad ? "dgrad" : "wgrad";
}
double Case::flops() const { return 2.0 * product.N * product.C * product.OC; }

std::string Case::key() const {
    const Product& p = product;
    return fmt::format("{} {} {} {} N={} C={} OC={} {} beta={} {} {}", model, layer, kind(), word_of(p.type), p.N, p.C,
                       p.OC, p.bias ? "bias" : "none", p.accumulate ? 1 : 0, mode(), scaling());
}

bool Case::in_matmul() const {
    const Product& p = product;
    if (p.kind == Product::forward ? p.type == OperandType::e5m2_e4m3 : p.bias) return false;
    if (p.kind == Product::dgrad && p.accumulate) return false;
    if (!is_fp8(p.type)) return true;
    const int multiple = p.has_block_scales() ? kScaleVector : 16;
    if (p.N % multiple != 0 || p.C % multiple != 0 || p.OC % multiple != 0) return false;
    return !p.has_block_scales() || (!fast && p.type == OperandType::e4m3);
}

double Case::error_limit() const {
    if (fast) return 2e-2;
    // Some of cuBLASLt's algorithms round a BF16 product before they add it: sqrt(2) times the error of one rounding.
    if (product.result_element() == Product::Element::bf16) return product.accumulate ? 3.5e-3 : 2.5e-3;
    if (is_fp8(product.type)) return 1e-3;
    return 1e-5 + Gemm(product).inner / 16 * 0x1p-23;  // tensor cores cut off low bits once every 16 elements
}

Product::Element bias_element(const Product& product) {
    return is_fp8(product.type) ? Product::Element::bf16 : product.result_element();
}

std::vector<Case> all_cases(Shapes shapes) {
    std::vector<Case> used, others;
    if (shapes == Shapes::layers)  // measures the ceiling of products
        for (const Case& c : combinations({"square", "square", 8192, 8192}, 8192))
            if (c.used) used.push_back(c);
    const auto add = [&](const Tokens& tokens) {
        for (const Layer& layer : all_layers(shapes))
            for (const Case& c : combinations(layer, tokens.N))
                if (c.used)
                    used.push_back(c);
                else if (tokens.everything)
                    others.push_back(c);
    };
    if (shapes == Shapes::tiny)
        std::for_each(std::begin(kTinyTokens), std::end(kTinyTokens), add);
    else
        std::for_each(std::begin(kTokens), std::end(kTokens), add);
    used.insert(used.end(), others.begin(), others.end());
    return used;
}

}  // namespace llmc::probe

// The configuration of a Trainer, and the words that flags, reports and run.json have for its choices. A choice gets
// its word here; the flag's row in flags.cpp explains it.
#pragma once
#include <cstdint>

#include "llmc/base/text.h"
#include "llmc/linear/matmul.h"
#include "llmc/model/setup.h"
#include "llmc/optim/config.h"
#include "llmc/shard/layout.h"

namespace llmc {

// How an FP8 run is validated. Other runs are validated in their own precision.
enum class ValPrecision { bf16, run };
template <>
inline constexpr WordTable<ValPrecision> kWords<ValPrecision> = {{"bf16", ValPrecision::bf16},
                                                                 {"run", ValPrecision::run}};

// Everything that decides the numbers of a run, except its data. `precision` has to fit the type of the activations.
struct TrainerConfig : ModelSetup, OptimizerSetup {
    int micro_steps = 1;  // per step
    bool tf32 = false;
    FastAccumulation fast_accumulation = FastAccumulation::forward;
    Fp8LayerTerms fp8_layers = {{"all"}};
    Sharding sharding;
    ProductChoices products;  // algorithms of matmuls
    ValPrecision val_precision = ValPrecision::bf16;
    double qk_clip = 0;         // limit of attention's logits (kernels/clip.h); 0: none
    int64_t signals_every = 0;  // steps from one with norms by tensor to the next (signals.h); 0: none
    int64_t verify_every = 0;   // steps from one verified step to the next (verification.h); 0: none

    // True if validation needs a model of its own.
    bool validates_in_bf16() const { return is_fp8() && !forward_only && val_precision == ValPrecision::bf16; }
};

template <>
inline constexpr WordTable<ScheduleKind> kWords<ScheduleKind> = {{"cosine", ScheduleKind::cosine},
                                                                 {"linear", ScheduleKind::linear},
                                                                 {"constant", ScheduleKind::constant},
                                                                 {"wsd", ScheduleKind::wsd},
                                                                 {"wsd-linear", ScheduleKind::wsd_linear},
                                                                 {"step", ScheduleKind::step},
                                                                 {"inverse-sqrt", ScheduleKind::inverse_sqrt}};

template <>
inline constexpr WordTable<OptimizerKind> kWords<OptimizerKind> = {{"adamw", OptimizerKind::adamw},
                                                                   {"lion", OptimizerKind::lion},
                                                                   {"sgd", OptimizerKind::sgd},
                                                                   {"muon", OptimizerKind::muon},
                                                                   {"normuon", OptimizerKind::normuon}};

template <>
inline constexpr WordTable<StateFormat> kWords<StateFormat> = {
    {"fp32", StateFormat::fp32}, {"bf16", StateFormat::bf16}, {"fp8", StateFormat::fp8}};

template <>
inline constexpr WordTable<MuonScale> kWords<MuonScale> = {{"rms", MuonScale::rms}, {"spectral", MuonScale::spectral}};

template <>
inline constexpr WordTable<ClipKind> kWords<ClipKind> = {
    {"norm", ClipKind::norm}, {"tensor", ClipKind::tensor}, {"value", ClipKind::value}};

template <>
inline constexpr WordTable<FastAccumulation> kWords<FastAccumulation> = {
    {"forward", FastAccumulation::forward}, {"none", FastAccumulation::none}, {"all", FastAccumulation::all}};

template <>
inline constexpr WordTable<Wire> kWords<Wire> = {{"fp32", Wire::fp32}, {"bf16", Wire::bf16}, {"fp8", Wire::fp8}};

template <>
inline constexpr WordTable<ReduceOrder> kWords<ReduceOrder> = {{"any", ReduceOrder::any}, {"rank", ReduceOrder::rank}};

}  // namespace llmc

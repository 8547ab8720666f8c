// The choices that configure a Trainer, by the words that flags, reports and run.json have for them. A choice gets its
// word here; the flag's row in flags.cpp explains it.
#pragma once
#include "llmc/base/text.h"
#include "llmc/comm/comm.h"
#include "llmc/fp8/recipe.h"
#include "llmc/linear/matmul.h"
#include "llmc/model/block.h"
#include "llmc/optim/config.h"
#include "llmc/optim/schedule.cuh"

namespace llmc {

// The number formats of a run: FP8 in some linear layers and BF16 elsewhere, BF16, or FP32.
enum class Precision {
    fp8,
    bf16,
    fp32,
    automatic  // until resolve() has seen the device
};
template <>
inline constexpr Word<Precision> kWords<Precision>[] = {
    {"fp8", Precision::fp8}, {"bf16", Precision::bf16}, {"fp32", Precision::fp32}, {"auto", Precision::automatic}};

template <>
inline constexpr Word<Recompute> kWords<Recompute>[] = {{"auto", Recompute::automatic},
                                                        {"none", Recompute::none},
                                                        {"gelu", Recompute::gelu},
                                                        {"norm", Recompute::norm},
                                                        {"block", Recompute::block}};

template <>
inline constexpr Word<ScheduleKind> kWords<ScheduleKind>[] = {{"cosine", ScheduleKind::cosine},
                                                              {"linear", ScheduleKind::linear},
                                                              {"constant", ScheduleKind::constant},
                                                              {"wsd", ScheduleKind::wsd},
                                                              {"wsd-linear", ScheduleKind::wsd_linear},
                                                              {"step", ScheduleKind::step},
                                                              {"inverse-sqrt", ScheduleKind::inverse_sqrt}};

template <>
inline constexpr Word<OptimizerKind> kWords<OptimizerKind>[] = {{"adamw", OptimizerKind::adamw},
                                                                {"lion", OptimizerKind::lion},
                                                                {"sgd", OptimizerKind::sgd},
                                                                {"muon", OptimizerKind::muon},
                                                                {"normuon", OptimizerKind::normuon}};

template <>
inline constexpr Word<StateFormat> kWords<StateFormat>[] = {
    {"fp32", StateFormat::fp32}, {"bf16", StateFormat::bf16}, {"fp8", StateFormat::fp8}};

template <>
inline constexpr Word<MuonScale> kWords<MuonScale>[] = {{"rms", MuonScale::rms}, {"spectral", MuonScale::spectral}};

template <>
inline constexpr Word<ClipKind> kWords<ClipKind>[] = {
    {"norm", ClipKind::norm}, {"tensor", ClipKind::tensor}, {"value", ClipKind::value}};

template <>
inline constexpr Word<FastAccumulation> kWords<FastAccumulation>[] = {
    {"forward", FastAccumulation::forward}, {"none", FastAccumulation::none}, {"all", FastAccumulation::all}};

template <>
inline constexpr Word<Wire> kWords<Wire>[] = {{"fp32", Wire::fp32}, {"bf16", Wire::bf16}, {"fp8", Wire::fp8}};

template <>
inline constexpr Word<ReduceOrder> kWords<ReduceOrder>[] = {{"any", ReduceOrder::any}, {"rank", ReduceOrder::rank}};

}  // namespace llmc

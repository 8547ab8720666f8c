// Clipping by tensor norm or by value: sums of squares per tensor, agreed between ranks, then a factor per tensor.
#include "llmc/optim/clipping.h"

#include <algorithm>

#include "llmc/comm/comm_range.h"
#include "llmc/device/trace.h"
#include "llmc/kernels/clip.h"

namespace llmc {

// Calls visit(unit, tensor, its number among all tensors) for this rank's tensors.
template <class Visit>
void Clipping::for_each_tensor(Visit&& visit) const {
    size_t number = 0;
    const std::vector<Unit>& units = gradients_.layout().table().units();
    for (size_t u = 0; u < units.size(); u++)
        for (const ParameterTensor& tensor : units[u].tensors) visit(u, tensor, number++);
}

Clipping::Clipping(Gradients& gradients, ClipKind kind, double clip)
    : gradients_(gradients), kind_(clip > 0 ? kind : ClipKind::norm), clip_(clip) {
    if (kind_ != ClipKind::tensor) return;
    size_t most = 0;
    for_each_tensor([&](size_t, const ParameterTensor& tensor, size_t number) {
        tensors_ = number + 1;
        most = std::max(most, global_norm_blocks(tensor.count()));
    });
    arena_.plan(&partials_, most);
    arena_.plan(&squares_, tensors_);
    arena_.plan(&factors_, tensors_);
    const Comm& comm = gradients.layout().comm();
    if (comm.world() > 1) arena_.plan(&workspace_, comm.all_reduce_workspace<double>(tensors_));
}

void Clipping::apply(const float* loss_scale, stream_t stream) {
    if (kind_ == ClipKind::norm) return;
    const ProfileRange range("clip", stream);
    if (kind_ == ClipKind::tensor) return clip_tensors(loss_scale, stream);
    const ShardLayout& layout = gradients_.layout();
    for (size_t u = 0; u < layout.units(); u++)
        clip_values(gradients_.slice(u), layout.slice(u).count, clip_, loss_scale, stream);
}

void Clipping::clip_tensors(const float* loss_scale, stream_t stream) {
    const ShardLayout& layout = gradients_.layout();
    set_bytes(squares_, 0, tensors_ * sizeof(double), stream);
    for_each_tensor([&](size_t unit, const ParameterTensor& tensor, size_t number) {
        const ShardLayout::Part share = layout.share(unit), part = ShardLayout::overlap(share, tensor);
        if (part.count == 0) return;
        global_norm_partials(partials_, gradients_.share(unit) + part.begin - share.begin, part.count, stream);
        add_partials(squares_ + number, partials_, global_norm_blocks(part.count), stream);
    });
    if (layout.comm().world() > 1) {
        const CommRange range("sum the tensors' norms", layout.comm(), stream);
        layout.comm().all_reduce(squares_, tensors_, ReduceOp::sum, workspace_, stream);
    }
    clip_factors(factors_, squares_, tensors_, clip_, loss_scale, stream);
    for_each_tensor([&](size_t unit, const ParameterTensor& tensor, size_t number) {
        const ShardLayout::Part slice = layout.slice(unit), part = ShardLayout::overlap(slice, tensor);
        scale_gradient(gradients_.slice(unit) + part.begin - slice.begin, part.count, factors_ + number, stream);
    });
}

}  // namespace llmc

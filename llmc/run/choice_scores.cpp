// Scores completions by the losses of their tokens.
#include "llmc/run/choice_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "llmc/run/ranks.h"

namespace llmc {
namespace {

// A completion of one of this rank's examples, and the sum of its tokens' losses.
struct Row {
    const Choices* example;
    size_t completion;
    double loss = 0;

    const std::vector<int32_t>& tokens() const { return example->completions[completion]; }
};

// Writes context and completion without its last token. Only the completion's tokens are targets.
void lay_out(const Row& row, int32_t* tokens, int32_t* targets) {
    const std::vector<int32_t>&context = row.example->context, &completion = row.tokens();
    std::copy(context.begin(), context.end(), tokens);
    std::copy(completion.begin(), completion.end() - 1, tokens + context.size());
    std::copy(completion.begin(), completion.end(), targets + context.size() - 1);
}

// True if the completion with the smallest loss is the right one. Of equal losses the first wins; a NaN is never right.
template <class Loss>
bool is_right(const Row* rows, Loss&& loss) {
    const size_t count = rows->example->completions.size();
    double least = std::numeric_limits<double>::infinity();
    size_t best = count;
    for (size_t i = 0; i < count; i++) {
        if (std::isnan(loss(rows[i]))) return false;
        if (loss(rows[i]) < least) {
            least = loss(rows[i]);
            best = i;
        }
    }
    return best == static_cast<size_t>(rows->example->label);
}

}  // namespace

template <class Real>
std::optional<ChoiceScores> score_choices(Trainer<Real>& trainer, const std::vector<Choices>& examples,
                                          Watchdog& watchdog) {
    const Comm& comm = trainer.comm();
    const size_t world = static_cast<size_t>(comm.world()), B = static_cast<size_t>(trainer.config().batch),
                 T = static_cast<size_t>(trainer.config().seq);
    std::vector<Row> rows;
    for (size_t i = static_cast<size_t>(comm.rank()); i < examples.size(); i += world)
        for (size_t c = 0; c < examples[i].completions.size(); c++) rows.push_back({&examples[i], c});

    // Every rank runs the same number of batches, some of them empty, because weights may have to be gathered.
    const size_t most_rows = static_cast<size_t>(comm.host_max(static_cast<int64_t>(rows.size())));
    std::vector<int32_t> tokens(B * T), targets(B * T);
    watchdog.alive();
    StopPoll told_to_stop(comm);
    for (size_t first = 0; first < most_rows; first += B) {
        if (told_to_stop()) return std::nullopt;
        const size_t end = std::min(first + B, rows.size());
        std::fill(tokens.begin(), tokens.end(), 0);
        std::fill(targets.begin(), targets.end(), -1);
        for (size_t r = first; r < end; r++) lay_out(rows[r], &tokens[(r - first) * T], &targets[(r - first) * T]);
        const std::vector<float> losses = trainer.token_losses(tokens.data(), targets.data());
        for (size_t r = first; r < end; r++)
            for (size_t t = 0; t < T; t++) rows[r].loss += static_cast<double>(losses[(r - first) * T + t]);
        watchdog.alive();
    }

    std::array<int64_t, 2> right{};
    for (size_t r = 0; r < rows.size(); r += rows[r].example->completions.size()) {
        right[0] += is_right(&rows[r], [](const Row& row) { return row.loss; });
        right[1] +=
            is_right(&rows[r], [](const Row& row) { return row.loss / static_cast<double>(row.tokens().size()); });
    }
    std::vector<std::array<int64_t, 2>> all(world);
    comm.host_all_gather(all.data(), &right, sizeof right);
    right = {};
    for (const std::array<int64_t, 2>& rank : all) {
        right[0] += rank[0];
        right[1] += rank[1];
    }
    const double count = static_cast<double>(examples.size());
    return ChoiceScores{static_cast<int64_t>(examples.size()), static_cast<double>(right[0]) / count,
                        static_cast<double>(right[1]) / count};
}

template std::optional<ChoiceScores> score_choices(Trainer<float>&, const std::vector<Choices>&, Watchdog&);
template std::optional<ChoiceScores> score_choices(Trainer<bf16>&, const std::vector<Choices>&, Watchdog&);

}  // namespace llmc

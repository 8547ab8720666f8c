// The transport over MPI, and the only file that knows MPI. Only the main thread calls it (MPI_THREAD_FUNNELED).
// build: per device
#include "llmc/comm/backend.h"

#if LLMC_USE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace llmc {

bool built_with_mpi() { return true; }

namespace {

void check_mpi(int status, const char* what) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw Error(ExitCode::communication, "{} failed: {}", what, text);
}
#define LLMC_CHECK_MPI(call) check_mpi((call), #call)

class MpiTransport final : public Transport {
public:
    MpiTransport(MPI_Comm comm, size_t largest_message) : comm_(comm), largest_(largest_message) {
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
        LLMC_CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
        LLMC_CHECK_MPI(MPI_Comm_size(comm_, &world_));
    }
    const char* name() const override { return "mpi"; }
    int rank() const override { return rank_; }
    int world() const override { return world_; }

    void all_gather(void* out, const void* in, size_t bytes) override {
        check_thread();
        char *const all = static_cast<char*>(out), *const own = all + rank_ * bytes;
        if (fits(bytes)) {
            const int n = static_cast<int>(bytes);
            LLMC_CHECK_MPI(MPI_Allgather(in == own ? MPI_IN_PLACE : in, n, MPI_BYTE, out, n, MPI_BYTE, comm_));
            return;
        }
        if (in != own) std::memcpy(own, in, bytes);
        for (int s = 1; s < world_; s++) exchange(s, in, bytes, all + behind(s) * bytes, bytes);
    }
    // MPI's own MPI_Alltoallv takes counts and displacements as int, too small for these sizes.
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in,
                      const std::vector<size_t>& send) override {
        check_thread();
        const auto place = [](const std::vector<size_t>& sizes, int rank) {
            return std::accumulate(sizes.begin(), sizes.begin() + rank, size_t{0});
        };
        for (int s = 0; s < world_; s++) {
            const int to = ahead(s), from = behind(s);
            exchange(s, static_cast<const char*>(in) + place(send, to), send[to],
                     static_cast<char*>(out) + place(receive, from), receive[from]);
        }
    }
    void broadcast(void* data, size_t bytes, int root) override {
        check_thread();
        for (size_t at = 0; at < bytes; at += largest_) {
            const int n = static_cast<int>(std::min(largest_, bytes - at));
            LLMC_CHECK_MPI(MPI_Bcast(static_cast<char*>(data) + at, n, MPI_BYTE, root, comm_));
        }
    }
    void barrier() override {
        check_thread();
        LLMC_CHECK_MPI(MPI_Barrier(comm_));
    }
    std::shared_ptr<Transport> split(int color) override {
        check_thread();
        MPI_Comm part;
        LLMC_CHECK_MPI(MPI_Comm_split(comm_, color, rank_, &part));
        return std::make_shared<MpiTransport>(part, largest_);
    }
    void finish() override {
        check_thread();
        LLMC_CHECK_MPI(MPI_Finalize());
    }

private:
    // MPI counts in int, and some algorithms hold all ranks' pieces in one buffer.
    bool fits(size_t bytes) const { return bytes * static_cast<size_t>(world_) <= largest_; }

    // The ranks `steps` positions ahead and behind in the ring.
    int ahead(int steps) const { return (rank_ + steps) % world_; }
    int behind(int steps) const { return (rank_ - steps + world_) % world_; }

    // Sends `sent` bytes to the rank `steps` positions ahead while it receives `received` bytes from the one behind.
    void exchange(int steps, const void* in, size_t sent, void* out, size_t received) {
        const char* const source = static_cast<const char*>(in);
        char* const target = static_cast<char*>(out);
        for (size_t at = 0; at < std::max(sent, received); at += largest_) {
            const int n = static_cast<int>(at < sent ? std::min(largest_, sent - at) : 0);
            const int m = static_cast<int>(at < received ? std::min(largest_, received - at) : 0);
            LLMC_CHECK_MPI(MPI_Sendrecv(source + std::min(at, sent), n, MPI_BYTE, n ? ahead(steps) : MPI_PROC_NULL, 0,
                                        target + std::min(at, received), m, MPI_BYTE, m ? behind(steps) : MPI_PROC_NULL,
                                        0, comm_, MPI_STATUS_IGNORE));
        }
    }
    static void check_thread() {
        int main_thread = 0;
        MPI_Is_thread_main(&main_thread);
        if (!main_thread) throw Error(ExitCode::failure, "collectives have to be called from the main thread");
    }

    MPI_Comm comm_;
    size_t largest_;
    int rank_ = 0, world_ = 1;
};

}  // namespace

std::shared_ptr<Transport> make_mpi_transport(size_t largest_message) {
    int granted = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &granted) != MPI_SUCCESS)
        throw Error(ExitCode::communication, "MPI_Init_thread failed");
    if (granted < MPI_THREAD_FUNNELED)
        throw Error(ExitCode::communication, "this MPI cannot be used in a program with threads; build one that can");
    return std::make_shared<MpiTransport>(MPI_COMM_WORLD, largest_message);
}

}  // namespace llmc

#else

namespace llmc {
bool built_with_mpi() { return false; }
std::shared_ptr<Transport> make_mpi_transport(size_t) {
    refuse("this build has no MPI: install Open MPI or MPICH (mpicxx) and build with USE_MPI=1");
}
}  // namespace llmc
#endif

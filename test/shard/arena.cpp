// One allocation for everything of one kind.
#include "llmc/shard/arena.h"

#include "test/kernel_test.h"

using namespace llmc;

TEST_CASE("arena: pointers planned under one name share memory, as large as the largest of them needs") {
    Arena arena(MemoryKind::workspace);
    float *own = nullptr, *small = nullptr, *other = nullptr;
    char* large = nullptr;
    const size_t unit = device_alignment();
    arena.plan(&own, 1);
    arena.plan_shared("codes", &small, 1);
    arena.plan_shared("codes", &large, 3 * unit);
    arena.plan_shared("sums", &other, 1);
    CHECK(arena.bytes() == (1 + 3 + 1) * unit);
    const size_t before = device_memory_use(MemoryKind::workspace).bytes;
    arena.allocate();
    CHECK(device_memory_use(MemoryKind::workspace).bytes - before == arena.bytes());
    CHECK(reinterpret_cast<char*>(small) == large);
    CHECK(reinterpret_cast<char*>(own) + unit == large);
    CHECK(large + 3 * unit == reinterpret_cast<char*>(other));
}

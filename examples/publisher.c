/* A publisher without gridchase, in C: it bears the run's mark, and publishes status and iterations over MQTT 3.1.1.

   cc -o publisher examples/publisher.c && ./publisher 127.0.0.1 1883 "$USER" resnet50 r1

   Names are of A-Z a-z 0-9 _ - here; docs/topics.md says how others are written, and what every field means. Numbers
   are sent in the longest form of MessagePack, which is valid. QoS 0 needs no answers, which is enough for an example;
   a broker with passwords and TLS needs a client library. */
#define _GNU_SOURCE
#include <netdb.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { N = 50 }; /* iterations in a message */
static unsigned char buffer[4096], *end; /* one packet's body */
static volatile sig_atomic_t stopped;
static const char *user, *job, *run;
static char boot_id[37];

static void stop(int number) { (void)number, stopped = 1; }
static void bytes(const void *data, size_t n) { memcpy(end, data, n), end += n; }
static void big(int type, uint64_t value, int n) { /* a type byte, and n bytes, the first the highest */
    if (type) *end++ = type;
    while (n--) *end++ = value >> 8 * n;
}
static void text(const char *value) { big(0, strlen(value), 2), bytes(value, strlen(value)); } /* as MQTT writes it */
static void name(const char *value) { big(0xda, strlen(value), 2), bytes(value, strlen(value)); } /* as MessagePack */
static void count(const char *key, uint64_t value) { name(key), big(0xcf, value, 8); }
static void real(const char *key, double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8), name(key), big(0xcb, bits, 8);
}
static void words(const char *key, const char *value) { name(key), name(value); }
static uint64_t now_ns(clockid_t clock) {
    struct timespec at;
    return clock_gettime(clock, &at), at.tv_sec * 1000000000ull + at.tv_nsec;
}
static int sends(int broker, int type) { /* the buffer, as one packet */
    unsigned char head[5], *h = head;
    size_t n = end - buffer, left = n;
    for (*h++ = type; *h = left & 127, left >>= 7; h++) *h |= 128;
    end = buffer;
    return write(broker, head, h + 1 - head) > 0 && write(broker, buffer, n) == (ssize_t)n;
}
static void topic(const char *leaf) {
    char path[512];
    snprintf(path, sizeof path, "gridchase/v1/host/%s/user/%s/job/%s/run/%s/rank/0/%s", boot_id, user, job, run, leaf);
    text(path);
}
static void status(const char *state, double started_at_s) {
    struct stat space = {0};
    stat("/proc/self/ns/pid", &space);
    *end++ = 0x80 | 10, words("run", run), words("state", state), words("host", "c"), words("boot_id", boot_id);
    count("pid", getpid()), count("pid_namespace", space.st_ino), count("world_size", 1);
    real("started_at_s", started_at_s), real("heartbeat_s", 1.0);
    name("gpus"), *end++ = 0x90; /* none named: those on which the driver lists this process */
}
static void bear_mark(void) { /* in the thread that publishes: "gc", 13 characters of base 64 of SHA-256 */
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    char command[256], hex[21] = "", mark[16] = "gc";
    unsigned int digit, bits = 0, n_bits = 0, n = 2;
    snprintf(command, sizeof command, "printf '%%s\\0%%s\\0%%s' '%s' '%s' '%s' | sha256sum", user, job, run);
    FILE *sum = popen(command, "r");
    if (!sum || !fgets(hex, sizeof hex, sum)) return;
    for (char *h = hex; n < 15 && sscanf(h, "%1x", &digit) == 1; h++) {
        bits = bits << 4 | digit, n_bits += 4;
        if (n_bits >= 6) n_bits -= 6, mark[n++] = digits[bits >> n_bits & 63];
    }
    pclose(sum), prctl(PR_SET_NAME, mark); /* needs no privilege, and must stay for as long as we publish */
}

int main(int argc, char **argv) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (argc != 6 || !file || !fgets(boot_id, sizeof boot_id, file) || getaddrinfo(argv[1], argv[2], &hints, &found))
        return fprintf(stderr, "usage: publisher HOST PORT USER JOB RUN\n"), 2;
    user = argv[3], job = argv[4], run = argv[5], end = buffer;
    int broker = socket(found->ai_family, SOCK_STREAM, 0);
    unsigned char answer[4] = {0};
    double started_at_s = now_ns(CLOCK_REALTIME) / 1e9;
    signal(SIGTERM, stop), signal(SIGINT, stop), signal(SIGPIPE, SIG_IGN);
    bear_mark();
    text("MQTT"), *end++ = 4, *end++ = 0x26, big(0, 60, 2), text(""), topic("status"); /* clean; a retained last will */
    unsigned char *length = end;
    end += 2, status("lost", started_at_s);
    length[0] = (end - length - 2) >> 8, length[1] = end - length - 2;
    if (connect(broker, found->ai_addr, found->ai_addrlen) || !sends(broker, 0x10) || read(broker, answer, 4) != 4 ||
        answer[3])
        return fprintf(stderr, "publisher: the broker does not answer, or refuses\n"), 1;
    freeaddrinfo(found);
    uint64_t begin_ns = now_ns(CLOCK_MONOTONIC), told_ns = 0, ends_ns[N];
    for (uint64_t seq = 0; !stopped; seq++) {
        for (int k = 0; k < N && !stopped; k++) {
            nanosleep(&(struct timespec){0, 10000000}, 0); /* a step of the training stands here */
            ends_ns[k] = now_ns(CLOCK_MONOTONIC);
            if (!k && ends_ns[k] - told_ns > 900000000) /* the heartbeat */
                topic("status"), status("running", started_at_s), told_ns = sends(broker, 0x31) ? ends_ns[k] : 0;
        }
        if (stopped) break;
        topic("iterations"), *end++ = 0x80 | 7, words("run", run), count("seq", seq), count("first", seq * N);
        count("begin_ns", begin_ns), count("epoch", 0), count("dropped", 0);
        name("end_ns"), big(0xc5, sizeof ends_ns, 2), bytes(ends_ns, sizeof ends_ns); /* little-endian */
        if (!sends(broker, 0x30)) return 1; /* a real one connects again */
        begin_ns = ends_ns[N - 1];
    }
    topic("status"), status("finished", started_at_s), sends(broker, 0x31);
    end = buffer, sends(broker, 0xe0);
    return 0;
}

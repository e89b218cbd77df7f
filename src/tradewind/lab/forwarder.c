/* The forwarder of the `delay` backend: packets between TUN devices, each pair at its own rate, delay and loss.
 *
 *     forwarder TABLE-FD TUN-FD TUN-FD ...
 *
 * The table (lab/link_table.py, same layout) is shared memory: the keeper changes rates and cuts links by writing to it
 * while this program runs, and reads the counters from it. lab/forwarder.py is the same program in Python, slower.
 *
 * A link is a queue of bytes before a transmitter, and a delay line behind it. A packet that finds the queue full is
 * dropped. The transmitter starts the next packet at the moment at which it finished the last one, not at the moment
 * when this program was scheduled, so that a busy machine delays packets but does not slow links down. NIC caps and
 * trunks are further transmitters, shared by links. TCP segments without data go first: on a slow reverse link
 * acknowledgements would otherwise wait behind data, and the fast forward link would starve. With segmentation offload
 * a "packet" is up to 64 KB that is segmented later; it counts with the headers that its segments will have.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_SITES 64
#define MAX_TRUNKS 64
#define MAX_PACKET 65600
#define READS_IN_A_ROW 16
#define FIRST_ADDRESS 0x0a4d0001u /* 10.77.0.1 */

struct link {
    double rate_bps, delay_s, loss;
    uint64_t queue_bytes, trunks; /* trunks: one bit for each trunk of the link */
    int32_t next_hop, cut;        /* next_hop: of packets from the row's site to the column's */
    uint64_t sent_bytes, sent_packets, lost_packets, dropped_packets;
};

struct table {
    uint32_t sites, trunks;
    double egress_bps[MAX_SITES], ingress_bps[MAX_SITES], trunk_bps[MAX_TRUNKS];
    struct link links[]; /* sites x sites */
};

struct virtio_header {
    uint8_t flags, gso_type;
    uint16_t hdr_len, gso_size, csum_start, csum_offset;
};

struct packet {
    struct packet *next;
    double due_s;
    uint32_t bytes, wire_bytes;
    int destination, urgent;
    unsigned char data[];
};

struct queue {
    struct packet *head, **tail;
};

struct state {
    struct queue urgent, waiting, flying;
    struct packet *current; /* on the transmitter */
    uint64_t waiting_bytes;
};

struct event {
    double at_s;
    uint32_t link, arrives; /* arrives: the head of the delay line; else the transmitter is done */
};

static struct table *table;
static struct state *states;
static struct event *heap;
static size_t heap_length;
static double egress_free_s[MAX_SITES], ingress_free_s[MAX_SITES], trunk_free_s[MAX_TRUNKS];
static int tuns[MAX_SITES], sites;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double uniform(void) { /* xorshift: good enough for loss; a fixed seed makes runs repeatable */
    static uint64_t x = 0x9e3779b97f4a7c15u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (double)(x >> 11) * 0x1p-53;
}

static void push(struct queue *q, struct packet *p) {
    p->next = NULL;
    if (!q->head) q->tail = &q->head;
    *q->tail = p;
    q->tail = &p->next;
}

static struct packet *pop(struct queue *q) {
    struct packet *p = q->head;
    q->head = p->next;
    return p;
}

static void schedule(double at_s, uint32_t link, uint32_t arrives) {
    size_t i = heap_length++;
    while (i && heap[(i - 1) / 2].at_s > at_s) heap[i] = heap[(i - 1) / 2], i = (i - 1) / 2;
    heap[i] = (struct event){at_s, link, arrives};
}

static struct event next_event(void) {
    struct event first = heap[0], last = heap[--heap_length];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < heap_length) {
        if (child + 1 < heap_length && heap[child + 1].at_s < heap[child].at_s) child++;
        if (heap[child].at_s >= last.at_s) break;
        heap[i] = heap[child], i = child;
    }
    heap[i] = last;
    return first;
}

/* The time at which a transmitter that is free at *free_s has sent this much, if it starts at start_s. */
static double transmit(double *free_s, double start_s, double bits, double bps) {
    if (*free_s < start_s) *free_s = start_s;
    return *free_s += bits / bps;
}

static double later(double a, double b) { return a > b ? a : b; }

static void start(uint32_t number, double start_s) {
    struct state *s = &states[number];
    struct link *l = &table->links[number];
    s->current = pop(s->urgent.head ? &s->urgent : &s->waiting);
    double bits = 8.0 * s->current->wire_bytes, end_s = start_s + bits / l->rate_bps;
    int from = (int)number / sites, to = (int)number % sites;
    end_s = later(end_s, transmit(&egress_free_s[from], start_s, bits, table->egress_bps[from]));
    end_s = later(end_s, transmit(&ingress_free_s[to], start_s, bits, table->ingress_bps[to]));
    for (uint32_t t = 0; t < table->trunks; t++)
        if (l->trunks >> t & 1) end_s = later(end_s, transmit(&trunk_free_s[t], start_s, bits, table->trunk_bps[t]));
    schedule(end_s, number, 0);
}

static void send_over(int from, struct packet *p, double at_s) {
    int to = table->links[from * sites + p->destination].next_hop;
    uint32_t number = (uint32_t)(from * sites + to);
    if (to < 0) {
        free(p);
        return;
    }
    struct link *l = &table->links[number];
    struct state *s = &states[number];
    if (l->cut || (l->loss > 0 && uniform() < l->loss)) {
        l->lost_packets++;
        free(p);
    } else if (s->waiting_bytes && s->waiting_bytes + p->wire_bytes > l->queue_bytes) {
        l->dropped_packets++;
        free(p);
    } else {
        s->waiting_bytes += p->wire_bytes;
        push(p->urgent ? &s->urgent : &s->waiting, p);
        if (!s->current) start(number, at_s);
    }
}

static void sent(uint32_t number, double at_s) {
    struct state *s = &states[number];
    struct link *l = &table->links[number];
    struct packet *p = s->current;
    int first = !s->flying.head;
    s->waiting_bytes -= p->wire_bytes;
    s->current = NULL;
    if (s->urgent.head || s->waiting.head) start(number, at_s);
    if (l->cut) { /* packets in transmission when the link is cut are lost, too */
        l->lost_packets++;
        free(p);
        return;
    }
    l->sent_bytes += p->wire_bytes;
    l->sent_packets++;
    p->due_s = at_s + l->delay_s;
    push(&s->flying, p);
    if (first) schedule(p->due_s, number, 1);
}

static void arrived(uint32_t number, double at_s) {
    struct state *s = &states[number];
    int here = (int)number % sites;
    struct packet *p = pop(&s->flying);
    if (s->flying.head) schedule(later(s->flying.head->due_s, at_s), number, 1);
    if (p->destination != here) {
        send_over(here, p, at_s);
        return;
    }
    if (write(tuns[here], p->data, p->bytes) < 0 && errno != EAGAIN && errno != EIO && errno != EINVAL)
        table->links[number].dropped_packets++;
    free(p);
}

/* Whether an IPv4 packet is a TCP segment without data. */
static int without_data(const unsigned char *ip, uint32_t length) {
    uint32_t header = 4u * (ip[0] & 15);
    return ip[9] == 6 && header >= 20 && length >= header + 20 && length == header + 4u * (ip[header + 12] >> 4);
}

/* Read one packet from a site; 0 if there is none. */
static int take(int from) {
    static unsigned char buffer[MAX_PACKET];
    ssize_t bytes = read(tuns[from], buffer, sizeof buffer);
    if (bytes < 0) return 0;
    struct virtio_header header;
    const size_t skip = sizeof header;
    if ((size_t)bytes < skip + 20 || buffer[skip] >> 4 != 4) return 1;
    uint32_t address;
    memcpy(&address, buffer + skip + 16, 4);
    uint32_t destination = ntohl(address) - FIRST_ADDRESS;
    if (destination >= (uint32_t)sites || destination == (uint32_t)from) return 1;
    memcpy(&header, buffer, skip);
    uint32_t length = (uint32_t)((size_t)bytes - skip);
    struct packet *p = malloc(sizeof *p + (size_t)bytes);
    if (!p) return 1;
    p->bytes = (uint32_t)bytes;
    p->wire_bytes = length;
    if (header.gso_type && header.gso_size && length > header.hdr_len) {
        uint32_t segments = (length - header.hdr_len + header.gso_size - 1u) / header.gso_size;
        p->wire_bytes += (segments - 1) * header.hdr_len;
    }
    p->destination = (int)destination;
    p->urgent = without_data(buffer + skip, length);
    memcpy(p->data, buffer, (size_t)bytes);
    send_over(from, p, now_s());
    return 1;
}

int main(int count, char **arguments) {
    struct stat about;
    struct pollfd polled[MAX_SITES];
    sites = count - 2;
    if (sites < 1 || sites > MAX_SITES || fstat(atoi(arguments[1]), &about)) return 2;
    table = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(arguments[1]), 0);
    if (table == MAP_FAILED || table->sites != (uint32_t)sites) return 2;
    states = calloc((size_t)(sites * sites), sizeof *states);
    heap = calloc((size_t)(2 * sites * sites + 2), sizeof *heap);
    if (!states || !heap) return 2;
    for (int i = 0; i < sites; i++) {
        tuns[i] = atoi(arguments[i + 2]);
        polled[i] = (struct pollfd){tuns[i], POLLIN, 0};
    }
    for (;;) {
        double now = now_s();
        while (heap_length && heap[0].at_s <= now) {
            struct event e = next_event();
            if (e.arrives) arrived(e.link, e.at_s);
            else sent(e.link, e.at_s);
        }
        double wait_s = heap_length ? later(0.0, heap[0].at_s - now_s()) : 1.0;
        struct timespec wait = {(time_t)wait_s, (long)(1e9 * (wait_s - (double)(time_t)wait_s))};
        if (ppoll(polled, (nfds_t)sites, &wait, NULL) <= 0) continue;
        for (int i = 0; i < sites; i++) {
            if (polled[i].revents & (POLLERR | POLLHUP | POLLNVAL)) return 1;
            for (int n = 0; polled[i].revents && n < READS_IN_A_ROW && take(i); n++) continue;
        }
    }
}

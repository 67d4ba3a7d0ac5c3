import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Measures one timer of the JVM, a round at a time, as the lines on its standard input say.
 *
 * One rule: the other side decides when. A line `round COUNT`, `memory` or `check` is answered by one line of
 * JSON, and the end of input ends the process, whatever it holds.
 *
 * Arguments: peer, connections, most milliseconds of warm-up.
 */
final class Bench {
    /** The timeout while touches are timed: longer than any run, so that nothing fires in between. */
    private static final long LONG_MILLIS = 600_000;

    private static final int CHUNK = 50_000; // touches between two looks at whether the warm-up is over
    private static final int CALM_CHUNKS = 5; // that many in a row have to be equally fast
    private static final double CALM = 1.10; // slowest of them / fastest of them
    private static final int MOST_WARM = 2_000_000; // touches; one peer keeps what every one of them leaves behind

    private static final long CHECK_TICK_MILLIS = 50;
    private static final long CHECK_TIMEOUT_MILLIS = 300;
    private static final int CHECK_EACH = 100; // connections that are silent, and as many that are touched

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final String peerName;
    private final int count;
    private final Peer.Connection[] order; // every connection once, in random order
    private Peer peer;
    private int position;

    private Bench(String peerName, int count) {
        this.peerName = peerName;
        this.count = count;
        this.order = new Peer.Connection[count];
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        Bench bench = new Bench(arguments[0], count);
        bench.prepare(Long.parseLong(arguments[2]));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split(" ");
            switch (words[0]) {
                case "round":
                    bench.round(Integer.parseInt(words[1]));
                    break;
                case "memory":
                    say("{\"heap\": %d}", used());
                    break;
                case "check":
                    bench.check();
                    break;
                default:
                    throw new IllegalArgumentException("no such line: " + line);
            }
        }
        System.exit(0); // peers have threads that would go on
    }

    private void prepare(long warmMillis) throws InterruptedException {
        long before = used();
        peer = Peer.named(peerName, 0, LONG_MILLIS, connection -> {
            throw new IllegalStateException("connection " + connection.number + " fired while touches were timed");
        });
        for (int number = 0; number < count; number++) {
            order[number] = peer.open(number);
        }
        peer.settle(count);
        long heap = used();
        // Shuffled only now: the collections of `used` have put every connection where it stays. Had they found the
        // shuffled order, they might have laid the connections out in it, and no touch would be far from the last.
        Random random = new Random(1);
        for (int i = count - 1; i > 0; i--) {
            int j = random.nextInt(i + 1);
            Peer.Connection moved = order[i];
            order[i] = order[j];
            order[j] = moved;
        }
        int warm = warm(warmMillis);
        peer.settle(CHUNK);
        say(
                "{\"ready\": true, \"heap_before\": %d, \"heap\": %d, \"warm_touches\": %d, \"java\": \"%s\", "
                        + "\"vm\": \"%s\"}",
                before, heap, warm, System.getProperty("java.version"), System.getProperty("java.vm.name"));
    }

    /** Touch until it gets no faster. Returns the touches it took. */
    private int warm(long millis) throws InterruptedException {
        long until = System.nanoTime() + millis * 1_000_000;
        double[] last = new double[CALM_CHUNKS];
        int chunks = 0;
        while (System.nanoTime() < until && chunks * CHUNK < MOST_WARM) {
            long cpu = THREADS.getCurrentThreadCpuTime();
            touch(CHUNK);
            last[chunks++ % CALM_CHUNKS] = THREADS.getCurrentThreadCpuTime() - cpu;
            double slowest = 0;
            double fastest = Double.MAX_VALUE;
            for (double each : last) {
                slowest = Math.max(slowest, each);
                fastest = Math.min(fastest, each);
            }
            if (chunks >= 2 * CALM_CHUNKS && slowest <= CALM * fastest) {
                break;
            }
        }
        return chunks * CHUNK;
    }

    /** Touch the next *touches* connections of the random order, from the beginning again after the last. */
    private void touch(int touches) {
        for (int left = touches; left > 0; ) {
            int end = (int) Math.min(count, (long) position + left);
            left -= end - position;
            touch(position, end);
            position = end;
            if (position == count) {
                position = 0;
            }
        }
    }

    private void touch(int begin, int end) {
        Peer.Connection[] all = order;
        for (int i = begin; i < end; i++) {
            all[i].touch();
        }
    }

    private void round(int touches) throws InterruptedException {
        touch(touches / 4); // not counted: the caches were emptied just now
        peer.settle(touches / 4);
        long cpu = THREADS.getCurrentThreadCpuTime();
        long wall = System.nanoTime();
        touch(touches);
        wall = System.nanoTime() - wall;
        cpu = THREADS.getCurrentThreadCpuTime() - cpu;
        peer.settle(touches);
        say("{\"wall_ns\": %d, \"cpu_ns\": %d, \"all_touches\": %d}", wall, cpu, touches + touches / 4);
    }

    /** In real time: who is silent fires once, who is touched does not until the touches end. */
    private void check() throws InterruptedException {
        Watch watch = new Watch(2 * CHECK_EACH, CHECK_TIMEOUT_MILLIS);
        Peer small = Peer.named(peerName, CHECK_TICK_MILLIS, CHECK_TIMEOUT_MILLIS, watch);
        Peer.Connection[] connections = new Peer.Connection[2 * CHECK_EACH];
        for (int number = 0; number < connections.length; number++) {
            watch.opens(number);
            connections[number] = small.open(number);
        }
        long until = System.nanoTime() + 3 * CHECK_TIMEOUT_MILLIS * 1_000_000;
        while (System.nanoTime() < until) {
            for (int number = CHECK_EACH; number < connections.length; number++) {
                if (!watch.fired(number)) {
                    long before = System.nanoTime();
                    connections[number].touch();
                    watch.touched(number, before);
                }
            }
            Thread.sleep(5);
        }
        String silent = watch.json(0, CHECK_EACH);
        int firedWhileTouched = watch.fired() - watch.fired(0, CHECK_EACH);
        watch.await(10 * CHECK_TIMEOUT_MILLIS);
        Thread.sleep(2 * CHECK_TICK_MILLIS); // whoever fires twice may do so now
        say(
                "{\"tick_ms\": %d, \"timeout_ms\": %d, \"each\": %d, \"silent\": {%s}, \"fired_while_touched\": %d, "
                        + "\"touched\": {%s}}",
                CHECK_TICK_MILLIS, CHECK_TIMEOUT_MILLIS, CHECK_EACH, silent, firedWhileTouched,
                watch.json(CHECK_EACH, connections.length));
        small.close();
    }

    /** Bytes of live objects. */
    private static long used() {
        System.gc();
        System.gc();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    private static void say(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
    }

    /** Who fired when, against when it was due: at the earliest a timeout after the last touch began. */
    private static final class Watch implements Peer.Hook {
        private final long timeoutNanos;
        private final AtomicLongArray due;
        private final AtomicLongArray firedAt;
        private final AtomicLongArray late;
        private final AtomicIntegerArray times;
        private final AtomicIntegerArray allowed;

        Watch(int count, long timeoutMillis) {
            timeoutNanos = timeoutMillis * 1_000_000;
            due = new AtomicLongArray(count);
            firedAt = new AtomicLongArray(count);
            late = new AtomicLongArray(count);
            times = new AtomicIntegerArray(count);
            allowed = new AtomicIntegerArray(count);
        }

        /** Just before it is opened. */
        void opens(int number) {
            allowed.set(number, 1);
            due.set(number, System.nanoTime() + timeoutNanos);
        }

        /**
         * Just after a touch that began at *before*. Where this process was held up for a whole timeout, the connection
         * may have fired, rightly, while it was being touched: then the touch armed it again, and it may fire again.
         */
        void touched(int number, long before) {
            due.set(number, before + timeoutNanos);
            if (fired(number)) {
                allowed.set(number, 2);
            }
        }

        @Override
        public void silent(Peer.Connection connection) {
            int number = connection.number;
            long now = System.nanoTime();
            if (!fired(number)) {
                late.set(number, now - due.get(number));
                firedAt.set(number, now);
            }
            times.incrementAndGet(number); // last: whoever sees it may read the others
        }

        boolean fired(int number) {
            return times.get(number) > 0;
        }

        int fired() {
            return fired(0, times.length());
        }

        int fired(int begin, int end) {
            int fired = 0;
            for (int number = begin; number < end; number++) {
                fired += fired(number) ? 1 : 0;
            }
            return fired;
        }

        void await(long millis) throws InterruptedException {
            long until = System.nanoTime() + millis * 1_000_000;
            while (fired() < times.length() && System.nanoTime() < until) {
                Thread.sleep(5);
            }
        }

        String json(int begin, int end) {
            long least = Long.MAX_VALUE;
            long most = Long.MIN_VALUE;
            long first = Long.MAX_VALUE;
            long last = Long.MIN_VALUE;
            int fired = 0;
            int twice = 0;
            for (int number = begin; number < end; number++) {
                if (!fired(number)) {
                    continue;
                }
                fired++;
                twice += times.get(number) > allowed.get(number) ? 1 : 0;
                least = Math.min(least, late.get(number));
                most = Math.max(most, late.get(number));
                first = Math.min(first, firedAt.get(number));
                last = Math.max(last, firedAt.get(number));
            }
            if (fired == 0) {
                return "\"fired\": 0, \"twice\": 0";
            }
            return String.format(
                    Locale.ROOT,
                    "\"fired\": %d, \"twice\": %d, \"late_ms_least\": %.3f, \"late_ms_most\": %.3f, "
                            + "\"within_ms\": %.3f",
                    fired, twice, least / 1e6, most / 1e6, (last - first) / 1e6);
        }
    }
}

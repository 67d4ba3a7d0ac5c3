import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Collections;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Netty's HashedWheelTimer as a server would use it for idle connections, asked by benchmarks/peers/jvm.py.
 *
 * <p>One rule: only one kind of Connection is loaded in a process, so that the compiler may inline `touch`.
 *
 * <pre>
 * java Bench.java netty-wheel|netty-wheel-lazy CONNECTIONS WARM_MS
 *   round TOUCHES   touch so many connections in random order; answers when the timer's thread has caught up
 *   check           in real time: the silent fire, once and not early, and the touched do too once they fall silent
 * </pre>
 */
final class Bench {
    private static final long LONG_MILLIS = 3_600_000;
    private static final long TICK_MILLIS = 100;
    /** As many timeouts as Netty's worker takes over in one tick; the rest waits for the next. */
    private static final int CHUNK = 100_000;

    private final boolean lazy;
    private final Connection[] order;
    private final HashedWheelTimer timer = new HashedWheelTimer(TICK_MILLIS, TimeUnit.MILLISECONDS);
    private int position;

    private Bench(boolean lazy, int count) {
        this.lazy = lazy;
        order = new Connection[count];
    }

    public static void main(String[] arguments) throws Exception {
        Bench bench = new Bench(arguments[0].endsWith("-lazy"), Integer.parseInt(arguments[1]));
        bench.prepare(Long.parseLong(arguments[2]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("round")) {
                bench.touch(Integer.parseInt(words[1]));
                bench.settle();
                say("{\"touches\": %s}", words[1]);
            } else {
                bench.check(100, 1_000);
            }
        }
        System.exit(0); // the timer has a thread that would go on
    }

    private void prepare(long warmMillis) throws InterruptedException {
        Runnable never = () -> {
            throw new IllegalStateException("a connection fired while touches were timed");
        };
        for (int i = 0; i < order.length; i++) {
            order[i] = open(LONG_MILLIS, never);
        }
        settle();
        System.gc(); // puts every connection where it stays; shuffled only now, or they might be laid out in that order
        Collections.shuffle(Arrays.asList(order), new Random(1));
        for (long until = System.nanoTime() + warmMillis * 1_000_000; System.nanoTime() < until; ) {
            touch(CHUNK);
            settle(); // or millions would wait for the worker, and what is opened next would be late by their ticks
        }
        say("{\"vm\": \"%s %s\"}", System.getProperty("java.vm.name"), System.getProperty("java.version"));
    }

    /** Touch the next connections of the random order, from the beginning again after the last. */
    private void touch(int touches) {
        for (int left = touches; left > 0; left--) {
            order[position].touch();
            position = position + 1 == order.length ? 0 : position + 1;
        }
    }

    /** Wait until the timer's thread has done what touches left to it. It takes new timeouts over in their order. */
    private void settle() throws InterruptedException {
        for (int turn = 0; turn < 2; turn++) { // what was cancelled while it came to the first is done by the second
            CountDownLatch reached = new CountDownLatch(1);
            timer.newTimeout(timeout -> reached.countDown(), 0, TimeUnit.NANOSECONDS);
            reached.await();
        }
    }

    private Connection open(long timeoutMillis, Runnable hook) {
        return lazy ? new Lazy(timeoutMillis, hook) : new Armed(timeoutMillis, hook);
    }

    private void check(int each, long timeoutMillis) throws InterruptedException {
        AtomicIntegerArray times = new AtomicIntegerArray(2 * each);
        long[] due = new long[2 * each];
        AtomicIntegerArray early = new AtomicIntegerArray(2 * each);
        Connection[] all = new Connection[2 * each];
        for (int i = 0; i < all.length; i++) {
            int number = i;
            due[i] = System.nanoTime() + timeoutMillis * 1_000_000;
            all[i] = open(timeoutMillis, () -> {
                times.incrementAndGet(number);
                early.addAndGet(number, System.nanoTime() < due[number] ? 1 : 0);
            });
        }
        long until = System.nanoTime() + 3 * timeoutMillis * 1_000_000;
        while (System.nanoTime() < until) {
            for (int i = each; i < all.length; i++) {
                if (times.get(i) == 0) { // else this process was held up for a whole timeout
                    due[i] = System.nanoTime() + timeoutMillis * 1_000_000;
                    all[i].touch();
                }
            }
            Thread.sleep(5);
        }
        Thread.sleep(2 * timeoutMillis + 5 * TICK_MILLIS);
        int[] counts = new int[4]; // silent, touched: that fired; more than once; early
        for (int i = 0; i < all.length; i++) {
            counts[i < each ? 0 : 1] += times.get(i) > 0 ? 1 : 0;
            counts[2] += i < each && times.get(i) > 1 ? 1 : 0;
            counts[3] += early.get(i);
        }
        say("{\"each\": %d, \"silent\": %d, \"touched\": %d, \"twice\": %d, \"early\": %d}",
                each, counts[0], counts[1], counts[2], counts[3]);
    }

    private static void say(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
    }

    private interface Connection {
        /** A packet came: the timeout starts again. */
        void touch();
    }

    /** Re-armed per packet: cancel and a new timeout. Netty's worker does the rest at its tick. */
    private final class Armed implements Connection, TimerTask {
        private final long timeoutMillis;
        private final Runnable hook;
        private Timeout timeout;

        Armed(long timeoutMillis, Runnable hook) {
            this.timeoutMillis = timeoutMillis;
            this.hook = hook;
            timeout = timer.newTimeout(this, timeoutMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void touch() {
            timeout.cancel();
            timeout = timer.newTimeout(this, timeoutMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void run(Timeout expired) {
            hook.run();
        }
    }

    /**
     * As IdleStateHandler does: a packet stores the time, which is looked at only when the timeout fires. A release store:
     * seen by the timer's thread, without the fence that a volatile store would cost at every packet.
     */
    private final class Lazy extends AtomicLong implements Connection, TimerTask {
        private final long timeoutNanos;
        private final Runnable hook;

        Lazy(long timeoutMillis, Runnable hook) {
            timeoutNanos = timeoutMillis * 1_000_000;
            this.hook = hook;
            set(System.nanoTime());
            timer.newTimeout(this, timeoutNanos, TimeUnit.NANOSECONDS);
        }

        @Override
        public void touch() {
            lazySet(System.nanoTime());
        }

        @Override
        public void run(Timeout expired) {
            long left = timeoutNanos - (System.nanoTime() - get());
            if (left <= 0) {
                hook.run();
            } else {
                timer.newTimeout(this, left, TimeUnit.NANOSECONDS);
            }
        }
    }
}

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.util.concurrent.TimeUnit;

/** Netty's HashedWheelTimer, re-armed per packet: cancel and a new timeout. Its worker does the rest at its tick. */
final class NettyWheel extends Peer {
    /** Timeouts that Netty's worker takes over in one tick; the rest waits for the next. */
    static final int TAKEN_PER_TICK = 100_000;

    private final HashedWheelTimer timer;
    private final long tickMillis;
    private final long timeoutMillis;
    private final Hook hook;
    private long open;

    NettyWheel(long tickMillis, long timeoutMillis, Hook hook) {
        this.timer = new HashedWheelTimer(tickMillis, TimeUnit.MILLISECONDS);
        this.tickMillis = tickMillis;
        this.timeoutMillis = timeoutMillis;
        this.hook = hook;
    }

    @Override
    Connection open(int number) {
        open++;
        return new Armed(number);
    }

    @Override
    void settle(int touches) throws InterruptedException {
        // A cancelled timeout counts as pending until the worker has seen it.
        while (timer.pendingTimeouts() > open) {
            Thread.sleep(tickMillis);
        }
        Thread.sleep(tickMillis * (1 + touches / TAKEN_PER_TICK));
    }

    @Override
    void close() {
        timer.stop();
    }

    private final class Armed extends Connection implements TimerTask {
        private Timeout timeout;

        Armed(int number) {
            super(number);
            timeout = timer.newTimeout(this, timeoutMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        void touch() {
            timeout.cancel();
            timeout = timer.newTimeout(this, timeoutMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void run(Timeout expired) {
            hook.silent(this);
        }
    }
}

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.util.concurrent.TimeUnit;

/** Netty's HashedWheelTimer, used as IdleStateHandler would: a packet stores the time, looked at only at expiry. */
final class NettyLazy extends Peer {
    private final HashedWheelTimer timer;
    private final long tickMillis;
    private final long timeoutNanos;
    private final Hook hook;

    NettyLazy(long tickMillis, long timeoutMillis, Hook hook) {
        this.timer = new HashedWheelTimer(tickMillis, TimeUnit.MILLISECONDS);
        this.tickMillis = tickMillis;
        this.timeoutNanos = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        this.hook = hook;
    }

    @Override
    Connection open(int number) {
        return new Lazy(number);
    }

    @Override
    void settle(int touches) throws InterruptedException {
        Thread.sleep(tickMillis);
    }

    @Override
    void close() {
        timer.stop();
    }

    private final class Lazy extends Connection implements TimerTask {
        private volatile long last = System.nanoTime();

        Lazy(int number) {
            super(number);
            timer.newTimeout(this, timeoutNanos, TimeUnit.NANOSECONDS);
        }

        @Override
        void touch() {
            LAST.setRelease(this, System.nanoTime());
        }

        @Override
        public void run(Timeout expired) {
            long left = timeoutNanos - (System.nanoTime() - last);
            if (left <= 0) {
                hook.silent(this);
            } else {
                timer.newTimeout(this, left, TimeUnit.NANOSECONDS);
            }
        }
    }

    // A release store: seen by the timer's thread, without the fence that a volatile store would cost at every packet.
    private static final java.lang.invoke.VarHandle LAST;

    static {
        try {
            LAST = java.lang.invoke.MethodHandles.lookup().findVarHandle(Lazy.class, "last", long.class);
        } catch (ReflectiveOperationException impossible) {
            throw new ExceptionInInitializerError(impossible);
        }
    }
}

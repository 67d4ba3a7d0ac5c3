import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * The JDK's ScheduledThreadPoolExecutor, re-armed per packet: cancel and schedule. It removes what was cancelled from
 * its heap at once (`setRemoveOnCancelPolicy(true)`), or keeps it until it would have been due (its default).
 */
final class Executor extends Peer {
    private final ScheduledThreadPoolExecutor executor = new ScheduledThreadPoolExecutor(1);
    private final long timeoutMillis;
    private final Hook hook;

    Executor(long timeoutMillis, Hook hook, boolean remove) {
        this.timeoutMillis = timeoutMillis;
        this.hook = hook;
        executor.setRemoveOnCancelPolicy(remove);
    }

    @Override
    Connection open(int number) {
        return new Scheduled(number);
    }

    @Override
    void close() {
        executor.shutdownNow();
    }

    private final class Scheduled extends Connection implements Runnable {
        private Future<?> future;

        Scheduled(int number) {
            super(number);
            future = executor.schedule(this, timeoutMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        void touch() {
            future.cancel(false);
            future = executor.schedule(this, timeoutMillis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void run() {
            hook.silent(this);
        }
    }
}

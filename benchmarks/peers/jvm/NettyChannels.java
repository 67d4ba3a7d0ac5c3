import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.handler.timeout.IdleStateEvent;
import io.netty.handler.timeout.IdleStateHandler;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Netty's IdleStateHandler where it lives: in a channel's pipeline, with one read and one read-complete per packet. The
 * same pipeline without it is the control. The channels are Netty's embedded ones; each has an event loop of its own
 * that somebody has to poll, so that only the touch and the memory are like those of a server.
 */
final class NettyChannels extends Peer {
    private static final Object PACKET = new Object();

    private final boolean watched;
    private final long timeoutMillis;
    private final Hook hook;
    private final List<Channel> channels = new ArrayList<>();

    NettyChannels(boolean watched, long timeoutMillis, Hook hook) {
        this.watched = watched;
        this.timeoutMillis = timeoutMillis;
        this.hook = hook;
    }

    @Override
    Connection open(int number) {
        Channel channel = new Channel(number);
        channels.add(channel);
        return channel;
    }

    @Override
    void poll() {
        for (Channel channel : channels) {
            channel.channel.runScheduledPendingTasks();
        }
    }

    @Override
    void close() {
        channels.clear();
    }

    /** The end of the pipeline: takes the packet, and the news of idleness. */
    private final class End extends ChannelInboundHandlerAdapter {
        private final Channel channel;

        End(Channel channel) {
            this.channel = channel;
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {}

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {}

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof IdleStateEvent) {
                context.close();
                hook.silent(channel);
            }
        }
    }

    private final class Channel extends Connection {
        private final EmbeddedChannel channel;

        Channel(int number) {
            super(number);
            End end = new End(this);
            channel = watched
                    ? new EmbeddedChannel(new IdleStateHandler(timeoutMillis, 0, 0, TimeUnit.MILLISECONDS), end)
                    : new EmbeddedChannel(end);
        }

        @Override
        void touch() {
            channel.pipeline().fireChannelRead(PACKET).fireChannelReadComplete();
        }
    }
}

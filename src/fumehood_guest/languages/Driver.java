package fumehood;

import java.awt.image.BufferedImage;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.BufferedInputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.LockSupport;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.execution.LocalExecutionControl;
import jdk.jshell.spi.ExecutionControl;
import jdk.jshell.spi.ExecutionControlProvider;
import jdk.jshell.spi.ExecutionEnv;

/**
 * Runs cells of Java in one JVM, by the JShell of the JDK, whose declarations persist from cell to cell.
 *
 * <p>A child of a context. It reads requests from one pipe, each a length and then names and texts with a length of four
 * bytes each, and writes replies to another: a length, then JSON. What cells print goes to fds 1 and 2, in order. It shares its
 * process with the code of its user, so that its replies are checked like everything else of a guest.
 */
public final class Driver {
    private static final List<String> IMPORTS = List.of(
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.time.*", "java.util.*",
        "java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*");
    private static final int MAX_COMPLETIONS = 500;
    private static final int MAX_TRACE_LINES = 100;
    private static final int SPINS = 20;
    private static final long PAUSE_NANOS = 50_000;

    /** What cells see of this program. */
    public static final class Display {
        private Display() {}

        /** Shows a text of a MIME type. */
        public static void show(String mime, String text) {
            send(Map.of("type", "display", "data", Map.of(mime, text)));
        }

        /** Shows HTML. */
        public static void html(Object text) {
            show("text/html", String.valueOf(text));
        }

        /** Shows a picture. */
        public static void image(byte[] content, String mime) {
            show(mime, Base64.getEncoder().encodeToString(content));
        }

        /** Shows a picture as PNG. */
        public static void image(BufferedImage picture) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            javax.imageio.ImageIO.write(picture, "png", bytes);
            image(bytes.toByteArray(), "image/png");
        }
    }

    /**
     * One of the two standard streams, behind the other: a write waits until the host has read what lies in the other's
     * pipe. So both arrive in the order in which they were printed, also what child processes have written before, and
     * a cell that prints to one stream only never waits.
     */
    private static final class Behind extends FileOutputStream {
        // Only asked how many bytes lie in its pipe: that works at the end for writing too. It is never closed.
        private final FileInputStream other;

        private Behind(FileDescriptor own, FileDescriptor other) {
            super(own);
            this.other = new FileInputStream(other);
        }

        @Override
        public void write(byte[] bytes, int offset, int length) throws IOException {
            awaitOther();
            super.write(bytes, offset, length);
        }

        @Override
        public void write(int one) throws IOException {
            awaitOther();
            super.write(one);
        }

        private void awaitOther() {
            for (int turn = 0; !isInterrupted && unread() > 0; turn++) {
                if (turn < SPINS) Thread.onSpinWait();
                else LockSupport.parkNanos(PAUSE_NANOS);
            }
        }

        private int unread() {
            try {
                return other.available();
            } catch (IOException gone) {
                return 0;
            }
        }
    }

    private record Place(String cell, int line) {}

    private static OutputStream replies;
    private static Thread writer;
    // Without locks: a stopped thread could leave one in any state, and code could hold one.
    private static final ConcurrentLinkedQueue<Outgoing> outgoing = new ConcurrentLinkedQueue<>();
    private static JShell shell;
    private static LocalExecutionControl control;
    private static volatile boolean isRunning;
    private static volatile boolean isInterrupted;
    private static int count;
    private static final Map<String, Place> places = new LinkedHashMap<>();

    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(new PrintStream(new Behind(FileDescriptor.out, FileDescriptor.err), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Behind(FileDescriptor.err, FileDescriptor.out), true, StandardCharsets.UTF_8));

        if (arguments.length < 2) {
            rehearse();
            return;
        }

        DataInputStream requests =
            new DataInputStream(new BufferedInputStream(new FileInputStream("/proc/self/fd/" + arguments[0])));
        replies = new FileOutputStream("/proc/self/fd/" + arguments[1]);
        startWriter();
        begin();
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> interrupt());
        send(Map.of("type", "ready", "version", Runtime.version().toString()));

        while (true) {
            Map<String, String> request;
            try {
                request = read(requests);
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);
                return;
            }
            obey(request);
        }
    }

    /** Runs what every cell needs once, for an archive of the classes that it loads. */
    private static void rehearse() {
        replies = OutputStream.nullOutputStream();
        startWriter();
        begin();
        for (String code : List.of("int x = 41; x + 1", "record P(int a) {}\nnew P(1)", "List.of(1, 2).stream().map(i -> i * 2).toList()",
            "int f(int n) { return n; }\nf(5)", "nothing", "throw new RuntimeException(\"x\")", "System.out.print(\"\")")) {
            send(run(new LinkedHashMap<>(Map.of("id", "0", "code", code))));
        }
        System.exit(0);
    }

    private static void begin() {
        // Where cells look for variables of a call, they find those of the sandbox too.
        System.getenv().forEach((name, value) -> {
            if (System.getProperty(name) == null) System.setProperty(name, value);
        });
        ExecutionControlProvider provider = new ExecutionControlProvider() {
            @Override
            public String name() {
                return "here";
            }

            @Override
            public ExecutionControl generate(ExecutionEnv environment, Map<String, String> parameters) {
                control = new LocalExecutionControl();
                return control;
            }
        };
        shell = JShell.builder().executionEngine(provider, Map.of()).in(System.in).out(System.out).err(System.err).build();
        shell.addToClasspath(System.getProperty("java.class.path"));
        for (String name : IMPORTS) shell.eval("import " + name + ";");
        shell.eval("import fumehood.Driver.Display;");
    }

    // -- requests and replies

    private static Map<String, String> read(DataInputStream requests) throws IOException {
        int left = requests.readInt();
        Map<String, String> request = new LinkedHashMap<>();
        String name = null;
        while (left > 0) {
            byte[] bytes = new byte[requests.readInt()];
            requests.readFully(bytes);
            left -= 4 + bytes.length;
            String text = new String(bytes, StandardCharsets.UTF_8);
            if (name == null) name = text;
            else {
                request.put(name, text);
                name = null;
            }
        }
        return request;
    }

    /** A reply, and the thread that waits until it is written. */
    private static final class Outgoing {
        private final Map<String, ?> reply;
        private final Thread sender = Thread.currentThread();
        private volatile boolean isWritten;
        private volatile Throwable failed;

        private Outgoing(Map<String, ?> reply) {
            this.reply = reply;
        }
    }

    /** Has a reply written. The thread of a cell may be stopped anywhere in here: the reply is then written whole, or not. */
    private static void send(Map<String, ?> reply) {
        Outgoing one = new Outgoing(reply);
        boolean wasInterrupted = false;
        outgoing.add(one);
        while (!one.isWritten) {
            LockSupport.unpark(writer);
            LockSupport.park(one);
            wasInterrupted |= Thread.interrupted();
        }
        if (wasInterrupted) one.sender.interrupt();
        if (one.failed != null) throw new IllegalStateException(one.failed);
    }

    /** Starts the only thread that writes replies. It is none of a cell's threads, which an interrupt stops anywhere. */
    private static void startWriter() {
        writer = new Thread(Driver::writeAll, "replies");
        writer.setDaemon(true);
        writer.start();
    }

    private static void writeAll() {
        while (true) {
            Outgoing one = outgoing.poll();
            if (one == null) {
                LockSupport.park(outgoing);
                // Code can interrupt every thread that it finds: a set flag would keep this one from parking.
                Thread.interrupted();
                continue;
            }
            try {
                write(one.reply);
            } catch (IOException gone) {
                Runtime.getRuntime().halt(1);
            } catch (Throwable failed) {
                // Before the first byte: there was no memory for its text.
                one.failed = failed;
            }
            one.isWritten = true;
            LockSupport.unpark(one.sender);
        }
    }

    private static void write(Map<String, ?> reply) throws IOException {
        byte[] body = json(reply).getBytes(StandardCharsets.UTF_8);
        byte[] frame = new byte[4 + body.length];
        for (int i = 0; i < 4; i++) frame[i] = (byte) (body.length >>> (24 - 8 * i));
        System.arraycopy(body, 0, frame, 4, body.length);
        replies.write(frame);
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            StringBuilder text = new StringBuilder("{");
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                if (text.length() > 1) text.append(',');
                text.append(json(String.valueOf(entry.getKey()))).append(':').append(json(entry.getValue()));
            }
            return text.append('}').toString();
        }
        if (value instanceof Iterable<?> items) {
            StringBuilder text = new StringBuilder("[");
            for (Object item : items) {
                if (text.length() > 1) text.append(',');
                text.append(json(item));
            }
            return text.append(']').toString();
        }
        if (value instanceof Number || value instanceof Boolean) return value.toString();
        StringBuilder text = new StringBuilder("\"");
        for (char c : String.valueOf(value).toCharArray()) {
            if (c == '"' || c == '\\') text.append('\\').append(c);
            else if (c < 32 || Character.isSurrogate(c)) text.append(String.format("\\u%04x", (int) c));
            else text.append(c);
        }
        return text.append('"').toString();
    }

    private static void obey(Map<String, String> request) {
        long id = Long.parseLong(request.get("id"));
        switch (request.get("type")) {
            case "run" -> send(run(request));
            case "sync" -> send(Map.of("type", "answer", "id", id));
            case "check" -> send(Map.of("type", "answer", "id", id, "status", check(request.get("code"))));
            case "complete" -> send(complete(id, request.get("code"), Integer.parseInt(request.get("cursor"))));
            default -> { }
        }
    }

    private static String check(String code) {
        return switch (shell.sourceCodeAnalysis().analyzeCompletion(code).completeness()) {
            case DEFINITELY_INCOMPLETE, CONSIDERED_INCOMPLETE -> "incomplete";
            case UNKNOWN -> "invalid";
            default -> "complete";
        };
    }

    private static Map<String, ?> complete(long id, String code, int cursor) {
        int[] start = {cursor};
        TreeSet<String> names = new TreeSet<>();
        for (SourceCodeAnalysis.Suggestion one : shell.sourceCodeAnalysis().completionSuggestions(code, cursor, start)) {
            if (names.size() < MAX_COMPLETIONS) names.add(one.continuation());
        }
        return Map.of("type", "answer", "id", id, "matches", names, "start", start[0]);
    }

    private static void interrupt() {
        if (!isRunning) return;
        isInterrupted = true;
        Thread stopper = new Thread(() -> {
            try {
                control.stop();
            } catch (Throwable failed) {
                // The cell has ended meanwhile.
            }
        });
        stopper.setDaemon(true);
        stopper.start();
    }

    // -- cells

    private static Map<String, Object> run(Map<String, String> request) {
        count++;
        String code = request.get("code");
        Map<String, Object> reply = new LinkedHashMap<>(Map.of("type", "reply", "id", Long.parseLong(request.get("id"))));
        Map<String, String> before = new LinkedHashMap<>();
        for (Map.Entry<String, String> entry : request.entrySet()) {
            if (!entry.getKey().startsWith("env:")) continue;
            String name = entry.getKey().substring(4);
            before.put(name, System.getProperty(name));
            System.setProperty(name, entry.getValue());
        }
        System.setIn(new FileInputStream(FileDescriptor.in));
        isInterrupted = false;
        isRunning = true;
        try {
            runSnippets(code, request.containsKey("silent"), reply);
        } catch (Throwable failed) {
            reply.put("error", error(failed.getClass().getName(), String.valueOf(failed.getMessage()), List.of(failed.toString())));
        } finally {
            isRunning = false;
            for (Map.Entry<String, String> entry : before.entrySet()) {
                if (entry.getValue() == null) System.clearProperty(entry.getKey());
                else System.setProperty(entry.getKey(), entry.getValue());
            }
        }
        System.out.flush();
        System.err.flush();
        if (isInterrupted) {
            reply.remove("error");
            reply.put("interrupted", true);
        }
        return reply;
    }

    private static void runSnippets(String code, boolean isSilent, Map<String, Object> reply) {
        String rest = code;
        while (!rest.isBlank() && !isInterrupted) {
            int offset = code.length() - rest.length();
            SourceCodeAnalysis.CompletionInfo info = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            String source = info.source() == null ? rest : info.source();
            rest = info.source() == null || info.remaining() == null ? "" : info.remaining();
            // What the analysis adds, a semicolon, is at the end.
            int blank = source.length() - source.stripLeading().length();
            Place place = new Place("cell_" + count + ".java", lineOf(code, offset + blank));

            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() != null) continue;
                Snippet snippet = event.snippet();
                places.put("#" + snippet.id(), place);
                if (event.status() == Snippet.Status.REJECTED) {
                    reply.put("error", rejected(snippet, code, offset));
                    return;
                }
                if (event.exception() != null) {
                    reply.put("error", thrown(event.exception()));
                    return;
                }
                if (event.status() == Snippet.Status.RECOVERABLE_DEFINED || event.status() == Snippet.Status.RECOVERABLE_NOT_DEFINED) {
                    System.err.println(waiting(snippet));
                }
                boolean isValue = snippet.kind() == Snippet.Kind.EXPRESSION
                    || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
                if (rest.isBlank() && isValue && !isSilent && event.value() != null && !event.value().isEmpty()) {
                    reply.put("data", Map.of("text/plain", event.value()));
                }
            }
        }
    }

    private static String waiting(Snippet snippet) {
        String names = snippet instanceof DeclarationSnippet declaration
            ? String.join(", ", shell.unresolvedDependencies(declaration).toList()) : "";
        String name = snippet instanceof DeclarationSnippet declaration ? declaration.name() : "it";
        return name + " cannot be used until " + names + " is declared";
    }

    private static int lineOf(String code, int offset) {
        return 1 + (int) code.substring(0, Math.min(offset, code.length())).chars().filter(c -> c == '\n').count();
    }

    // -- errors

    private static Map<String, ?> error(String name, String value, List<String> trace) {
        return Map.of("ename", name, "evalue", value, "traceback", trace);
    }

    private static Map<String, ?> rejected(Snippet snippet, String code, int offset) {
        List<String> lines = new ArrayList<>();
        String[] rows = code.split("\n", -1);
        String first = "it does not compile";
        for (Diag diag : (Iterable<Diag>) shell.diagnostics(snippet)::iterator) {
            int at = offset + (int) Math.max(0, diag.getPosition());
            int row = Math.min(lineOf(code, at), rows.length);
            String kind = diag.isError() ? "error" : "warning";
            if (lines.isEmpty()) first = diag.getMessage(Locale.ROOT).lines().findFirst().orElse(first);
            lines.add("cell_" + count + ".java:" + row + ": " + kind + ": " + diag.getMessage(Locale.ROOT));
            lines.add(rows[row - 1]);
            lines.add(" ".repeat(Math.max(0, at - code.lastIndexOf('\n', Math.max(0, Math.min(at, code.length()) - 1)) - 1)) + "^");
        }
        return error("CompilationError", first, lines);
    }

    private static Map<String, ?> thrown(JShellException exception) {
        List<String> lines = new ArrayList<>();
        if (exception instanceof UnresolvedReferenceException unresolved) {
            String words = waiting(unresolved.getSnippet());
            return error("UnresolvedReferenceException", words, List.of(words));
        }
        EvalException evaluated = (EvalException) exception;
        String value = exception.getMessage() == null ? "" : exception.getMessage();
        String heading = evaluated.getExceptionClassName() + (value.isEmpty() ? "" : ": " + value);
        Throwable next = exception;
        while (next != null) {
            lines.add(lines.isEmpty() ? heading : "Caused by: " + named(next));
            for (StackTraceElement element : next.getStackTrace()) {
                if (lines.size() < MAX_TRACE_LINES) lines.add("    at " + shown(element));
            }
            next = next.getCause();
        }
        return error(evaluated.getExceptionClassName(), value, lines);
    }

    private static String named(Throwable thrown) {
        String name = thrown instanceof EvalException evaluated ? evaluated.getExceptionClassName() : thrown.getClass().getName();
        return name + (thrown.getMessage() == null ? "" : ": " + thrown.getMessage());
    }

    private static String shown(StackTraceElement element) {
        Place place = places.get(element.getFileName());
        if (place == null) return element.toString();
        String where = place.cell() + ":" + (place.line() + Math.max(1, element.getLineNumber()) - 1);
        String method = element.getMethodName();
        return method == null || method.isEmpty() ? where : method + " (" + where + ")";
    }
}

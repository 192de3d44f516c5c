"""Of each language of whole programs one that reads files: the program of an attacker who is after those of the host.

It gets paths, a line each, on its standard input, and prints each file behind a line that begins with `==`. A file that
cannot be read has nothing behind that line. SQL has no input: its program names the paths itself.
"""

from __future__ import annotations

PROGRAMS = {
    "c": """
#include <stdio.h>
#include <string.h>
int main(void) {
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        path[strcspn(path, "\\n")] = 0;
        printf("== %s\\n", path);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        for (int c; (c = getc(file)) != EOF;) putchar(c);
        fclose(file);
    }
}""",
    "cpp": """
#include <bits/stdc++.h>
int main() {
    std::string path;
    while (std::getline(std::cin, path)) {
        std::ifstream file(path);
        std::cout << "== " << path << "\\n" << std::string(std::istreambuf_iterator<char>(file), {});
    }
}""",
    "go": """
package main
import ("bufio"; "fmt"; "os")
func main() {
    lines := bufio.NewScanner(os.Stdin)
    for lines.Scan() {
        text, _ := os.ReadFile(lines.Text())
        fmt.Printf("== %s\\n%s", lines.Text(), text)
    }
}""",
    "rust": """
use std::io::{self, BufRead, Write};
fn main() {
    for path in io::stdin().lock().lines().map(|line| line.unwrap()) {
        println!("== {}", path);
        io::stdout().write_all(&std::fs::read(&path).unwrap_or_default()).unwrap();
    }
}""",
    "csharp": """
using System; using System.IO;
class P { static void Main() {
    for (string path; (path = Console.ReadLine()) != null;) {
        Console.WriteLine("== " + path);
        try { Console.Write(File.ReadAllText(path)); } catch (Exception) { }
    }
} }""",
    "php": """<?php
while (($path = fgets(STDIN)) !== false) { echo "== $path"; echo @file_get_contents(trim($path)); }""",
    "ruby": """
STDIN.each_line do |path|
  puts "== #{path}"
  print (File.read(path.chomp) rescue "")
end""",
    "lua": """
for path in io.lines() do
  print("== " .. path)
  local file = io.open(path)
  if file then io.write(file:read("a") or "") end
end""",
    "perl": """
while (my $path = <STDIN>) {
    chomp $path;
    print "== $path\\n";
    if (open(my $file, "<", $path)) { print while <$file>; }
}""",
    "ocaml": """
let () =
  try while true do
    let path = input_line stdin in
    Printf.printf "== %s\\n" path;
    (try
      let file = open_in path in
      (try while true do print_char (input_char file) done with End_of_file -> ());
      close_in file
    with Sys_error _ -> ())
  done with End_of_file -> ()""",
    "racket": """#lang racket
(for ([path (in-lines)])
  (printf "== ~a\\n" path)
  (with-handlers ([exn:fail? void])
    (call-with-input-file path (lambda (port) (copy-port port (current-output-port))))))""",
    "fortran": """
program p
  character(len=4096) :: path, line
  integer :: status
  do
    read(*, "(A)", iostat=status) path
    if (status /= 0) exit
    print "(A)", "== " // trim(path)
    open(unit=10, file=trim(path), status="old", action="read", iostat=status)
    if (status /= 0) cycle
    do
      read(10, "(A)", iostat=status) line
      if (status /= 0) exit
      print "(A)", trim(line)
    end do
    close(10)
  end do
end program""",
    "verilog": """
module m;
  integer file, c, found;
  reg [8*500-1:0] path;
  initial begin
    while ($fscanf(32'h8000_0000, "%s", path) == 1) begin
      $display("== %0s", path);
      file = $fopen(path, "r");
      if (file != 0) begin
        c = $fgetc(file);
        while (c >= 0) begin $write("%c", c); c = $fgetc(file); end
        $fclose(file);
      end
    end
    $finish;
  end
endmodule""",
    "d": """
import std.stdio, std.file;
void main() {
    foreach (path; stdin.byLineCopy) {
        writeln("== ", path);
        try { foreach (line; File(path).byLineCopy) writeln(line); } catch (Exception) { }
    }
}""",
    "pascal": """
{$I-}
var path, line: ansistring; source: text;
begin
  while not eof do begin
    readln(path); writeln('== ', path);
    assign(source, path); reset(source);
    if ioresult = 0 then begin
      while not eof(source) do begin readln(source, line); writeln(line); end;
      close(source);
    end;
  end;
end.""",
    "scheme": """
(use-modules (ice-9 rdelim) (ice-9 textual-ports))
(let next ((path (read-line)))
  (unless (eof-object? path)
    (display "== ") (display path) (newline)
    (catch #t (lambda () (display (call-with-input-file path get-string-all))) (lambda _ #f))
    (next (read-line))))""",
    "lisp": """
(loop for path = (read-line *standard-input* nil) while path do
  (format t "== ~a~%" path)
  (ignore-errors
    (with-open-file (file (sb-ext:native-pathname path) :external-format :latin-1)
      (loop for line = (read-line file nil) while line do (write-line line)))))""",
    "tcl": """
while {[gets stdin path] >= 0} {
    puts "== $path"
    catch { set file [open $path]; puts -nonewline [read $file]; close $file }
}""",
    "cobol": "\n".join(
        "       " + line
        for line in """IDENTIFICATION DIVISION.
PROGRAM-ID. P.
ENVIRONMENT DIVISION.
INPUT-OUTPUT SECTION.
FILE-CONTROL.
    SELECT SOURCE-FILE ASSIGN TO WS-PATH
        ORGANIZATION LINE SEQUENTIAL FILE STATUS WS-STATUS.
DATA DIVISION.
FILE SECTION.
FD SOURCE-FILE.
01 SOURCE-LINE PIC X(500).
WORKING-STORAGE SECTION.
01 WS-PATH PIC X(500).
01 WS-STATUS PIC XX.
PROCEDURE DIVISION.
MAIN-PART.
    MOVE SPACES TO WS-PATH
    ACCEPT WS-PATH
    PERFORM UNTIL WS-PATH = SPACES
        DISPLAY "== " WS-PATH
        OPEN INPUT SOURCE-FILE
        IF WS-STATUS = "00"
            PERFORM UNTIL WS-STATUS NOT = "00"
                READ SOURCE-FILE
                IF WS-STATUS = "00" DISPLAY SOURCE-LINE END-IF
            END-PERFORM
            CLOSE SOURCE-FILE
        END-IF
        MOVE SPACES TO WS-PATH
        ACCEPT WS-PATH
    END-PERFORM
    STOP RUN.""".splitlines()
    ),
    "erlang": """
-module(main).
-export([main/0]).
main() ->
    case io:get_line("") of
        eof -> ok;
        Line ->
            Path = string:trim(Line),
            io:format("== ~s~n", [Path]),
            case file:open(Path, [read, raw, binary]) of
                {ok, File} -> copy(File);
                _ -> ok
            end,
            main()
    end.
copy(File) ->
    case file:read(File, 4096) of
        {ok, Data} -> io:put_chars(binary:bin_to_list(Data)), copy(File);
        _ -> ok
    end.""",
    "elixir": """
for line <- IO.stream(:stdio, :line) do
  path = String.trim(line)
  IO.puts("== " <> path)
  case File.read(path) do
    {:ok, text} -> IO.write(text)
    _ -> nil
  end
end""",
    "clojure": """
(doseq [path (line-seq (java.io.BufferedReader. *in*))]
  (println (str "== " path))
  (try
    (print (String. (.readAllBytes (java.io.FileInputStream. path)) "ISO-8859-1"))
    (catch Exception _)))
(flush)""",
    "haskell": """
import Control.Exception
main = do
  paths <- lines <$> getContents
  mapM_ (\\path -> do
    putStrLn ("== " ++ path)
    (readFile path >>= putStr) `catch` (\\e -> const (return ()) (e :: IOException))) paths""",
    "ada": """
with Ada.Text_IO; use Ada.Text_IO;
procedure Main is
begin
   while not End_Of_File loop
      declare
         Path : constant String := Get_Line;
         Source : File_Type;
      begin
         Put_Line ("== " & Path);
         Open (Source, In_File, Path);
         while not End_Of_File (Source) loop
            Put_Line (Get_Line (Source));
         end loop;
         Close (Source);
      exception
         when others => null;
      end;
   end loop;
end Main;""",
}


def sql(paths: list[str]) -> str:
    """Returns the program of SQL, whose shell runs other programs: its own function reads no file without a size."""
    lines = (f"select '== {path}';\n.shell cat {path} 2>/dev/null" for path in paths)
    return "\n".join(lines)


def files_in(printed: str) -> dict[str, str]:
    """Returns what a program has printed, by path."""
    found: dict[str, str] = {}

    for part in f"\n{printed}".split("\n== ")[1:]:
        path, _, text = part.partition("\n")
        found[path.strip()] = text.strip()

    return found

# Runs cells of R in the process of a context: the value of this program is a function that gets our function for
# displays, and returns the one that runs a cell, checks code or completes a name. It leaves no name in the workspace.
function(shower) {
  folder <- NULL
  count <- 0L

  show <- function(kind, formats) {
    contents <- lapply(formats, function(x) if (is.raw(x)) x else charToRaw(enc2utf8(paste(as.character(x), collapse = "\n"))))
    .Call(shower, kind, names(formats), unname(contents))
    invisible()
  }

  # -- plots: each page is a picture

  open_device <- function(...) {
    if (is.null(folder) || !dir.exists(folder)) {
      folder <<- tempfile("plots")
      dir.create(folder, recursive = TRUE)
    }
    size <- getOption("fumehood.plot", c(width = 840, height = 600, res = 120))
    grDevices::png(file.path(folder, "%04d.png"), width = size[["width"]], height = size[["height"]], res = size[["res"]], type = "cairo")
  }

  show_plots <- function() {
    if (is.null(folder)) return(invisible())
    while (!is.null(grDevices::dev.list())) grDevices::dev.off()
    for (file in sort(list.files(folder, full.names = TRUE))) {
      bytes <- file.size(file)
      if (!is.na(bytes) && bytes > 0) show("display_data", list(`image/png` = readBin(file, "raw", bytes), `text/plain` = "Plot"))
      unlink(file)
    }
  }

  # -- values

  escaped <- function(text) gsub(">", "&gt;", gsub("<", "&lt;", gsub("&", "&amp;", text, fixed = TRUE), fixed = TRUE), fixed = TRUE)

  table_html <- function(value) {
    if (requireNamespace("repr", quietly = TRUE)) return(repr::repr_html(value))
    shown <- utils::head(as.data.frame(value), 60L)
    cells <- vapply(shown, function(column) escaped(format(column)), character(nrow(shown)))
    dim(cells) <- dim(shown)
    rows <- apply(cells, 1L, function(row) paste0("<tr>", paste0("<td>", row, "</td>", collapse = ""), "</tr>"))
    head <- paste0("<th>", escaped(names(shown)), "</th>", collapse = "")
    paste0("<table><thead><tr>", head, "</tr></thead><tbody>", paste(rows, collapse = ""), "</tbody></table>")
  }

  show_value <- function(value, kind) {
    if (inherits(value, c("ggplot", "recordedplot", "trellis", "grob", "gtable"))) {
      print(value)
      return(invisible())
    }
    formats <- list()
    if (inherits(value, "htmlwidget") || inherits(value, "shiny.tag") || inherits(value, "shiny.tag.list")) {
      formats$`text/html` <- tryCatch(as.character(htmltools::as.tags(value)), error = function(e) NULL)
    } else if (is.data.frame(value) || (is.matrix(value) && !is.list(value))) {
      formats$`text/html` <- tryCatch(table_html(value), error = function(e) NULL)
    }
    formats$`text/plain` <- utils::capture.output(if (isS4(value)) methods::show(value) else print(value))
    show(kind, formats)
  }

  # -- errors

  named <- function(condition) class(condition)[[1L]]

  frames <- function(calls) {
    lines <- vapply(rev(calls), function(call) {
      text <- deparse(call, nlines = 1L, width.cutoff = 80L)[[1L]]
      place <- attr(call, "srcref")
      if (is.null(place)) text else paste0(text, "   at ", attr(place, "srcfile")$filename, ":", place[[1L]])
    }, "")
    if (length(lines)) paste0(rev(seq_along(lines)), ". ", lines) else lines
  }

  report <- function(kind, name, value, trace = "") show("error", list(kind = kind, name = name, value = value, trace = trace))

  leave <- function(save = "default", status = 0, runLast = TRUE) {
    stop(structure(class = c("fumehood_exit", "error", "condition"), list(message = as.character(as.integer(status)), call = NULL)))
  }

  for (name in c("q", "quit")) {
    unlockBinding(name, baseenv())
    assign(name, leave, envir = baseenv())
    lockBinding(name, baseenv())
  }

  # -- cells

  # The call that evaluates an expression of a cell, as it stands among the calls of a trace.
  own <- quote(eval(parsed[[i]], globalenv()))

  run <- function(code, is_silent) {
    name <- paste0("cell_", count, ".R")
    parsed <- tryCatch(
      parse(text = code, keep.source = TRUE, srcfile = srcfilecopy(name, strsplit(code, "\n", fixed = TRUE)[[1L]])),
      error = function(e) {
        report("error", "SyntaxError", conditionMessage(e))
        NULL
      }
    )
    if (is.null(parsed)) return("")
    is_told <- FALSE
    tell <- function(e, calls) {
      if (is_told) return(invisible())
      is_told <<- TRUE
      place <- paste0("   at ", name, ":", attr(parsed, "srcref")[[i]][[1L]])
      if (!inherits(e, "fumehood_exit")) report("error", named(e), conditionMessage(e), c(heading(e), frames(calls), place))
      else if (conditionMessage(e) != "0") report("exit", "ExitCode", conditionMessage(e))
    }
    outcome <- tryCatch({
      for (i in seq_along(parsed)) {
        withCallingHandlers({
          result <- withVisible(eval(parsed[[i]], globalenv()))
        }, error = function(e) {
          calls <- sys.calls()
          # Ours stand above those of the cell, and the last two are this handler's.
          ours <- max(which(vapply(calls, identical, NA, own)))
          tell(e, calls[seq_along(calls) > ours & seq_along(calls) < length(calls) - 1L])
        })
        if (result$visible && !is_silent) show_value(result$value, if (i == length(parsed)) "execute_result" else "display_data")
      }
      ""
    }, interrupt = function(e) "interrupted", error = function(e) {
      # Where the stack was too deep for the handler above.
      tell(e, list())
      ""
    })
    tryCatch(show_plots(), error = function(e) message("the plots cannot be shown: ", conditionMessage(e)), interrupt = function(e) NULL)
    outcome
  }

  heading <- function(condition) {
    call <- conditionCall(condition)
    text <- conditionMessage(condition)
    if (is.null(call) || identical(call, own)) paste0("Error: ", text) else paste0("Error in ", deparse(call, nlines = 1L)[[1L]], ": ", text)
  }

  check <- function(code) {
    tryCatch({
      parse(text = code, keep.source = FALSE)
      "complete"
    }, error = function(e) if (grepl("unexpected end of input|unexpected INCOMPLETE_STRING", conditionMessage(e))) "incomplete" else "invalid")
  }

  complete <- function(line) {
    tools <- asNamespace("utils")
    tools$.assignLinebuffer(line)
    tools$.assignEnd(nchar(line))
    token <- tools$.guessTokenFromLine()
    tools$.completeToken()
    paste(c(token, tools$.retrieveCompletions()), collapse = "\n")
  }

  options(
    device = open_device,
    warn = 1L,
    pager = function(files, ...) for (file in files) cat(readLines(file), sep = "\n"),
    browser = function(url) message("there is no browser here: ", url),
    menu.graphics = FALSE,
    jupyter.base_display_func = function(data, metadata = NULL, ...) show("display_data", as.list(data)),
    cli.num_colors = 1L,
    repos = c(CRAN = "https://cloud.r-project.org")
  )

  function(what, text, extra) {
    if (what == "run") {
      count <<- count + 1L
      run(text, extra == "silent")
    } else if (what == "check") check(text)
    else if (what == "complete") tryCatch(complete(text), error = function(e) "")
    else if (what == "version") paste(R.version$major, R.version$minor, sep = ".")
    else if (what == "warm") {
      # What every cell needs, loaded and compiled once.
      invisible(utils::capture.output(print(1)))
      requireNamespace("repr", quietly = TRUE)
      for (i in 1:4) gc()
      ""
    }
  }
}

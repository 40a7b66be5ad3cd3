"""Which language a file is in: by its whole name, then its extension, then its `#!` line. A table, no
guessing."""

from __future__ import annotations

OTHER = "other"
"""A text file that no row of the tables names."""

BINARY = "binary"
"""A file with a NUL byte in its first 8 KiB, whatever its name says."""

_NAMES = {
    "Dockerfile": "Dockerfile Containerfile",
    "Makefile": "Makefile GNUmakefile makefile",
    "CMake": "CMakeLists.txt",
    "Ruby": "Gemfile Rakefile Podfile Vagrantfile",
    "Starlark": "BUILD WORKSPACE BUILD.bazel WORKSPACE.bazel",
    "Groovy": "Jenkinsfile",
    "Just": "justfile Justfile",
    "Nix": "flake.lock",
    "Go module": "go.mod go.sum go.work",
    "JSON": ".babelrc .eslintrc .prettierrc composer.lock Pipfile.lock",
    "TOML": "Cargo.lock poetry.lock uv.lock Pipfile",
    "Shell": ".bashrc .bash_profile .profile .zshrc",
    "Ignore list": ".gitignore .dockerignore .npmignore .eslintignore .prettierignore .hgignore",
    "Git config": ".gitattributes .gitmodules .gitconfig",
    "INI": ".editorconfig .npmrc .pylintrc .flake8 .coveragerc",
    "Text": "LICENSE LICENCE COPYING NOTICE AUTHORS CONTRIBUTORS README CHANGES CHANGELOG INSTALL TODO VERSION "
    "METADATA RECORD WHEEL INSTALLER REQUESTED PKG-INFO py.typed",
}

_EXTENSIONS = {
    "Python": "py pyi pyw pyx pxd",
    "Jupyter Notebook": "ipynb",
    "JavaScript": "js mjs cjs jsx",
    "TypeScript": "ts mts cts tsx",
    "Vue": "vue",
    "Svelte": "svelte",
    "HTML": "html htm xhtml",
    "CSS": "css",
    "Sass": "scss sass",
    "Less": "less",
    "C": "c h",
    "C++": "cc cpp cxx hh hpp hxx ipp tpp",
    "C#": "cs csx",
    "Objective-C": "m mm",
    "CUDA": "cu cuh",
    "Go": "go",
    "Rust": "rs",
    "Java": "java",
    "Kotlin": "kt kts",
    "Scala": "scala sc",
    "Groovy": "groovy gradle",
    "Swift": "swift",
    "Dart": "dart",
    "Ruby": "rb rake gemspec erb",
    "PHP": "php phtml",
    "Perl": "pl pm t",
    "Lua": "lua",
    "R": "r rmd",
    "Julia": "jl",
    "Haskell": "hs lhs",
    "OCaml": "ml mli",
    "F#": "fs fsi fsx",
    "Elixir": "ex exs",
    "Erlang": "erl hrl",
    "Clojure": "clj cljs cljc edn",
    "Lisp": "lisp el scm",
    "Zig": "zig",
    "Nim": "nim",
    "D": "d",
    "Fortran": "f f77 f90 f95 f03 for",
    "Pascal": "pas pp",
    "Ada": "adb ads",
    "COBOL": "cob cbl",
    "Assembly": "s asm",
    "Verilog": "v sv svh vh",
    "VHDL": "vhd vhdl",
    "Shell": "sh bash zsh fish ksh",
    "PowerShell": "ps1 psm1 psd1",
    "Batch": "bat cmd",
    "SQL": "sql",
    "GraphQL": "graphql gql",
    "Protocol Buffers": "proto",
    "Thrift": "thrift",
    "Terraform": "tf tfvars hcl",
    "Nix": "nix",
    "Starlark": "bzl star",
    "CMake": "cmake",
    "Makefile": "mk mak",
    "Meson": "meson",
    "Jinja": "j2 jinja jinja2",
    "Mustache": "mustache hbs handlebars",
    "XML": "xml xsd xsl xslt svg plist rng",
    "JSON": "json jsonc json5 jsonl ndjson geojson webmanifest",
    "YAML": "yaml yml",
    "TOML": "toml",
    "INI": "ini cfg conf properties",
    "CSV": "csv tsv",
    "Markdown": "md markdown mdx",
    "reStructuredText": "rst",
    "AsciiDoc": "adoc asciidoc",
    "TeX": "tex sty cls bib",
    "Text": "txt text log",
    "Diff": "diff patch",
    "Source map": "map",
    "Gettext": "po pot",
    "Dotenv": "env",
    "Vim script": "vim",
    "WebAssembly text": "wat",
    "Solidity": "sol",
    "GLSL": "glsl vert frag",
    "HLSL": "hlsl",
    "Tcl": "tcl",
    "Awk": "awk",
}

_INTERPRETERS = {
    "Shell": "sh bash zsh dash ksh fish",
    "Python": "python python2 python3 pypy pypy3",
    "JavaScript": "node nodejs bun",
    "TypeScript": "deno ts-node tsx",
    "Ruby": "ruby",
    "Perl": "perl",
    "PHP": "php",
    "Lua": "lua luajit",
    "R": "Rscript",
    "Tcl": "tclsh wish",
    "Awk": "awk gawk mawk",
    "PowerShell": "pwsh",
    "Julia": "julia",
    "Elixir": "elixir",
    "Groovy": "groovy",
}


def _inverted(table: dict[str, str]) -> dict[str, str]:
    return {word: language for language, words in table.items() for word in words.split()}


_BY_NAME = _inverted(_NAMES)
_BY_EXTENSION = _inverted(_EXTENSIONS)
_BY_INTERPRETER = _inverted(_INTERPRETERS)


def language_of(name: str, first_line: bytes = b"") -> str:
    """The language of a text file called `name` (no folders) that begins with `first_line`; `other` if
    unknown."""
    if found := _BY_NAME.get(name):
        return found
    stem, dot, extension = name.rpartition(".")
    if dot and stem and (found := _BY_EXTENSION.get(extension.lower())):
        return found
    if found := _BY_INTERPRETER.get(interpreter(first_line)):
        return found
    return OTHER


def interpreter(first_line: bytes) -> str:
    """The program that a `#!` line names, without folder, `env` and version (`python3.12` is `python`); or
    empty."""
    if not first_line.startswith(b"#!"):
        return ""
    words = first_line[2:200].decode("utf-8", "replace").split()
    while words and words[0].rpartition("/")[2] == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    name = words[0].rpartition("/")[2] if words else ""
    bare = name.rstrip("0123456789.")
    return name if name in _BY_INTERPRETER else bare

# Functions for the scripts beside this one: `. scripts/environment.sh`, in the directory above.

# find_python MINOR...: print the path of a Python 3.MINOR that runs; of the first MINOR for which there is one.
find_python() {
    for minor in "$@"; do
        for python in "python3.$minor" "${HOME:-}"/.pyenv/versions/3."$minor".*/bin/python3 python3 python; do
            if "$python" -c "import sys; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
                printf '%s\n' "$python"
                return
            fi
        done
    done
    return 1
}

# make_environment DIRECTORY PYTHON LOCK...: make a virtual environment with what the files requirements/LOCK.txt pin, by
# their hashes, and this project itself, editable, unless it is there already and nothing has changed that it was made from.
# Of several processes, one makes it, and the others wait.
make_environment() {
    # The lock belongs to the open file, which this shell shares with that Python; it ends with this shell, however that ends.
    (
        "$2" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
        make_environment_alone "$@"
    ) 9>"$1.lock"
}

make_environment_alone() {
    directory=$1 python=$2
    shift 2
    recipe=$(
        "$python" -c 'import sys; print(sys.version)'
        echo "$PWD" "$@"
        for lock in "$@"; do cksum "requirements/$lock.txt"; done
        cksum pyproject.toml
    )
    if [ -x "$directory/bin/python" ] && [ "$(cat "$directory/made-from" 2>/dev/null)" = "$recipe" ]; then
        return
    fi
    echo "Making the environment $directory; this takes a moment, once."
    # Some systems keep the module ensurepip in a package of its own; then pip itself does for it.
    "$python" -m venv --clear "$directory" >/dev/null 2>&1 || {
        "$python" -m venv --clear --without-pip "$directory"
        "$python" -m pip --python "$directory/bin/python" install -qq --disable-pip-version-check pip
    }
    for lock in "$@"; do
        install_quickly "$directory" "requirements/$lock.txt" ||
            "$directory/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes \
                --requirement "requirements/$lock.txt"
    done
    # Hatchling, which builds it, is among what the lock files pin.
    "$directory/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
    printf '%s\n' "$recipe" >"$directory/made-from"
}

# install_quickly DIRECTORY LOCK: install what a lock file pins by uv, if it pins that: pip takes several times as long. But uv
# reads no settings of pip's, such as a mirror. So where this fails, pip does it all.
install_quickly() {
    sed -n '/^uv==/,/[^\\]$/p' "$2" >"$1/uv.txt"
    [ -s "$1/uv.txt" ] || return 1
    "$1/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes --requirement "$1/uv.txt" &&
        "$1/bin/uv" pip install --quiet --python "$1/bin/python" --compile-bytecode --require-hashes --requirement "$2" 2>/dev/null
}

# install_programs: install the proxies, the pooler, Prometheus and the browser that the tests run, from the packages of Debian or
# Ubuntu, where this may be done.
install_programs() {
    missing=""
    browser=""
    [ -x /usr/sbin/nginx ] || command -v nginx >/dev/null || missing="nginx-light"
    [ -x /usr/sbin/haproxy ] || command -v haproxy >/dev/null || missing="$missing haproxy"
    [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null || missing="$missing pgbouncer"
    command -v promtool >/dev/null || missing="$missing prometheus"
    # It draws as the whole browser does, for half of the work.
    command -v chromium-headless-shell >/dev/null || browser="chromium-headless-shell"
    if [ -z "$missing$browser" ] || ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
        return 0
    fi
    echo "Installing $missing $browser; this takes a moment, once."
    apt-get update -qq >/dev/null || true # what is known already may do
    # Where there is no such package, the whole browser does. $missing is several words.
    # shellcheck disable=SC2086
    install_packages $missing $browser || install_packages $missing ${browser:+chromium} ||
        echo "They can't be installed: the tests that need them are skipped." >&2
}

# install_packages NAME...: install packages of Debian or Ubuntu. Services are not started: in this runlevel they are not.
install_packages() {
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

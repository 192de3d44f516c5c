# A server of fumehood in one container, as `fumehood serve --print-docker` fills this in. It builds the image, starts
# the container, waits for it, and prints the two variables with which clients find it:
#
#   eval "$(fumehood serve --print-docker | sh)"
#
# `docker rm --force fumehood` ends it; its state stays in the volume fumehood. The container is not privileged. What it
# needs beyond Docker's defaults, and why, stands in compose.yaml beside this file.
set -eu

@secrets@
: "${FUMEHOOD_TOKEN:=$(openssl rand -hex 24)}"
export FUMEHOOD_TOKEN

docker image inspect @image@ >/dev/null 2>&1 || docker build --tag @image@ - >&2 <<'DOCKERFILE'
@dockerfile@
DOCKERFILE

docker run --detach --init --restart unless-stopped --stop-timeout 30 --name fumehood \
    --publish @published@:@port@ --volume fumehood:/var/lib/fumehood \
    @options@ \
    ${FUMEHOOD_MEMORY:+--memory $FUMEHOOD_MEMORY} \
    @image@ serve --host 0.0.0.0 >&2

# Where the engine leaves less than sandboxes need, this says what and why.
docker exec fumehood fumehood doctor >/dev/null 2>&1 || {
    docker exec fumehood fumehood doctor >&2 || true
    docker rm --force fumehood >/dev/null
    exit 1
}

ready="import urllib.request as r; r.urlopen('http://127.0.0.1:@port@/readyz', timeout=5)"

until docker exec fumehood python -c "$ready" 2>/dev/null; do
    if [ "$(docker inspect --format '{{.RestartCount}}' fumehood)" != 0 ]; then
        docker logs fumehood >&2
        exit 1
    fi

    sleep 1
done

echo "export FUMEHOOD_URL=@url@ FUMEHOOD_API_KEY=$FUMEHOOD_TOKEN"

-- Requests for wrk. Arguments: method, path, and a file whose lines are keys (GET) or bodies (POST), in turn.
-- Without arguments the URL is read as it is. Ends with one line of JSON.
local requests, at = {}, 0

function init(args)
    if not args[3] then return end
    for line in io.lines(args[3]) do
        if args[1] == "POST" then
            wrk.headers["Content-Type"] = "application/json"
            requests[#requests + 1] = wrk.format("POST", args[2], nil, line)
        else
            requests[#requests + 1] = wrk.format("GET", args[2] .. line)
        end
    end
    function request()
        at = at % #requests + 1
        return requests[at]
    end
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format('{"requests": %d, "microseconds": %d, "refused": %d, "broken": %d, "p50_us": %d, "p99_us": %d}\n',
        summary.requests, summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
        latency:percentile(50), latency:percentile(99)))
end

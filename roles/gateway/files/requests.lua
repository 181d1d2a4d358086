-- Copyright: ironserve.llm contributors
-- GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
-- SPDX-License-Identifier: GPL-3.0-or-later
--
-- Reads out of a request's body what the gateway routes by. HAProxy's own json_query ends at the first \u escape, which is how
-- most clients send Chinese. The body may be cut where a buffer ends: what is not whole is not guessed. Lua 5.3 and later.

local find, byte, sub, match = string.find, string.byte, string.sub, string.match
local QUOTE, BACKSLASH = 34, 92

-- How much of the first user message makes the key, in bytes of UTF-8: templates share their first 100 characters.
local PREFIX = 1024
-- The most bytes in which JSON can write them: \u0041 is one.
local PREFIX_RAW = 6 * PREFIX

local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

-- The place of the quote that ends a string whose first character is at `from`; nil if it was cut. An escaped quote has an odd
-- number of backslashes before it.
local function closing(body, from)
    local at = from
    while true do
        local quote = find(body, '"', at, true)
        if not quote then return nil end
        local back = quote - 1
        while back >= from and byte(body, back) == BACKSLASH do back = back - 1 end
        if (quote - back) % 2 == 1 then return quote end
        at = quote + 1
    end
end

-- A string as JSON writes it, as text. Half a surrogate pair is "?"; an escape that was cut at the end is left out.
local function text(raw)
    if not find(raw, "\\", 1, true) then return raw end
    local out, at = {}, 1
    while true do
        local slash = find(raw, "\\", at, true)
        if not slash then
            out[#out + 1] = sub(raw, at)
            break
        end
        out[#out + 1] = sub(raw, at, slash - 1)
        local kind = sub(raw, slash + 1, slash + 1)
        if kind == "u" then
            local high = tonumber(match(raw, "^%x%x%x%x", slash + 2) or "", 16)
            if not high then break end
            at = slash + 6
            if high >= 0xD800 and high < 0xDC00 then
                local low = tonumber(match(raw, "^\\u(%x%x%x%x)", at) or "", 16)
                if low and low >= 0xDC00 and low < 0xE000 then
                    high = 0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00
                    at = at + 6
                end
            end
            out[#out + 1] = (high >= 0xD800 and high < 0xE000) and "?" or utf8.char(high)
        elseif kind == "" then
            break
        else
            out[#out + 1] = ESCAPES[kind] or kind
            at = slash + 2
        end
    end
    return table.concat(out)
end

-- The place after the value that begins at `at`; nil if it was cut.
local function after(body, at)
    local first = sub(body, at, at)
    if first == '"' then
        local quote = closing(body, at + 1)
        return quote and quote + 1
    end
    if first ~= "{" and first ~= "[" then return match(body, "^[^%s,%]}]+()[%s,%]}]", at) end
    local depth = 0
    while true do
        at = find(body, '["{}%[%]]', at)
        if not at then return nil end
        local found = sub(body, at, at)
        if found == '"' then
            at = closing(body, at + 1)
            if not at then return nil end
        elseif found == "{" or found == "[" then
            depth = depth + 1
        else
            depth = depth - 1
        end
        at = at + 1
        if depth == 0 then return at end
    end
end

-- Calls seen(key, place of the value) for each member of the object at `at`, until it returns true or the body is cut. Returns
-- whether the end of the object was seen.
local function members(body, at, seen)
    at = match(body, "^%s*{()", at)
    while at do
        local key = match(body, "^[%s,]*\"()", at)
        if not key then return find(body, "^%s*}", at) ~= nil end
        local quote = closing(body, key)
        local value = quote and match(body, "^%s*:%s*()", quote + 1)
        if not value or seen(text(sub(body, key, quote - 1)), value) then return false end
        at = after(body, value)
    end
    return false
end

-- Calls seen(place of the element) for each element of the list at `at`, likewise.
local function elements(body, at, seen)
    at = match(body, "^%s*%[()", at)
    while at do
        at = match(body, "^[%s,]*()[^%s,%]]", at)
        if not at or seen(at) then return end
        at = after(body, at)
    end
end

-- The first bytes of the string at `at` as text; nil if it is none, or was cut before there were enough of them.
local function beginning(body, at)
    if byte(body, at) ~= QUOTE then return nil end
    local quote = closing(body, at + 1)
    local raw = sub(body, at + 1, math.min(at + PREFIX_RAW, (quote or #body + 1) - 1))
    local words = text(raw)
    if not quote and #words < PREFIX then return nil end
    return sub(words, 1, PREFIX)
end

-- The beginning of a content: a string, or a list of parts of which the first with a text counts.
local function content(body, at)
    if byte(body, at) == QUOTE then return beginning(body, at) end
    local words
    elements(body, at, function(part)
        members(body, part, function(key, value)
            if key == "text" then words = beginning(body, value) end
            return key == "text"
        end)
        return words ~= nil
    end)
    return words
end

-- The beginning of the first message of the user in the list at `at`. The system prompt says nothing: a whole tenant shares it.
local function first_user(body, at)
    local words
    elements(body, at, function(message)
        local user, place = false, nil
        members(body, message, function(key, value)
            if key == "role" then user = beginning(body, value) == "user" end
            if key == "content" then place = value end
            return user and place ~= nil
        end)
        if user and place then words = content(body, place) end
        return user
    end)
    return words
end

-- The beginning of a prompt: a string, the first string of a list, or the list itself when it is one of tokens.
local function prompt(body, at)
    if byte(body, at) == QUOTE then return beginning(body, at) end
    local first = match(body, "^%[%s*()", at)
    if not first then return nil end
    if byte(body, first) == QUOTE then return beginning(body, first) end
    if match(body, "^[%d%[]", first) then return sub(body, at, at + PREFIX - 1) end
    return nil
end

-- What requests with the same prompt at the beginning share; "" if there is nothing of the kind.
local function prefix(body)
    local words
    members(body, 1, function(key, value)
        if key == "messages" then
            words = first_user(body, value)
        elseif key == "prompt" then
            words = prompt(body, value)
        elseif key == "input" then
            words = first_user(body, value) or prompt(body, value)
        else
            return false
        end
        return true
    end)
    return words or ""
end

-- The model that a body asks for; "" if it names none as far as it can be read. Two are none at all: engines take the last one. A
-- body of `size` bytes that is all there and no whole object names none: what is wrong with it is the engine's to say.
local function model(body, size)
    local found = ""
    local count = 0
    local whole = members(body, 1, function(key, value)
        if key == "model" then
            count = count + 1
            local quote = byte(body, value) == QUOTE and closing(body, value + 1)
            if quote then found = text(sub(body, value + 1, quote - 1)) end
        end
        return false
    end)
    if not whole and #body >= size then return "" end
    return count > 1 and "two models" or found
end

-- The elements of a list of models: those of `names`, separated by blanks, that `scope` (",a,b,") admits; all if it is empty.
local function models(scope, names)
    local out = {}
    for name in string.gmatch(names, "%S+") do
        if scope == "-" or find(scope, "," .. name .. ",", 1, true) then
            out[#out + 1] = '{"id":"' .. name .. '","object":"model","created":0,"owned_by":"ironserve"}'
        end
    end
    return table.concat(out, ",")
end

if core then
    core.register_converters("ironserve_prefix", prefix)
    core.register_fetches("ironserve_model", function(txn) return model(txn.f:req_body(), txn.f:req_body_size()) end)
    core.register_converters("ironserve_models", models)
else
    return { prefix = prefix, model = model, models = models }
end

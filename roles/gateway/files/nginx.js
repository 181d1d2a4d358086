// Copyright: ironserve.llm contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// What nginx itself cannot: the hash of a client's key, and whether that key has ended. Figures for the access log.

import crypto from 'crypto';

// sha256 of the request's only bearer key, lower-case hex; empty for none, for two, and for other kinds.
function key_hash(r) {
    const sent = r.rawHeadersIn.filter(header => header[0].toLowerCase() === 'authorization');
    const words = sent.length === 1 ? sent[0][1].match(/^bearer +([^ ]+)$/i) : null;
    return words ? crypto.createHash('sha256').update(words[1]).digest('hex') : '';
}

// An entry of keys.map is "name" or "name|end|...", the end in seconds of the epoch, 0 for none.
function key_name(r) {
    return r.variables.ironserve_entry.split('|')[0];
}

function key_expired(r) {
    const end = Number(r.variables.ironserve_entry.split('|')[1] || 0);
    return end > 0 && Date.now() >= end * 1000 ? '1' : '';
}

// Of "a, b : c" what came last: that of the replica that answered.
function last(list) {
    return String(list || '').split(/, | : /).pop();
}

// Seconds to milliseconds; -1 is a time that never came.
function milliseconds(text) {
    const seconds = parseFloat(text);
    return String(isNaN(seconds) ? -1 : Math.round(seconds * 1000));
}

function first_byte_ms(r) {
    return milliseconds(last(r.variables.upstream_header_time));
}

function total_ms(r) {
    return milliseconds(r.variables.request_time);
}

function tried_again(r) {
    return String(String(r.variables.upstream_addr || '').split(/, | : /).length - 1);
}

export default { key_hash, key_name, key_expired, first_byte_ms, total_ms, tried_again };

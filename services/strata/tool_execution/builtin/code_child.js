// Executes the JavaScript of `run_code`. Node runs this script in the jail, next to the code's file.
'use strict';
const fs = require('fs');
const util = require('util');
const vm = require('vm');

const FILE = 'code.js';
const most = Number(process.argv[2]);
const inspect = (value) => util.inspect(value, { depth: 4, maxArrayLength: 200 });

function cut(text) {
  return text.length <= most ? text : `${text.slice(0, most)}... [${text.length} characters in all]`;
}

function failed(error) {
  const thrown = error instanceof Error ? error : null;
  // Only lines of the code: frames of this script or of Node do not help the model.
  const lines = String((thrown && thrown.stack) || '').split('\n');
  const own = lines.filter((line) => !/^\s+at /.test(line) || line.includes(FILE));
  tell({
    error: {
      type: thrown ? thrown.name : 'thrown',
      message: cut(thrown ? thrown.message : inspect(error)),
      traceback: own.join('\n').slice(0, most),
    },
  });
  process.exitCode = 1;
}

let told = false;

function tell(answer) {
  // Only the first error counts.
  if (told) return;
  told = 'error' in answer;
  fs.writeFileSync('answer.json', JSON.stringify(answer));
}

process.on('uncaughtException', failed);
Object.assign(globalThis, { require, module: { exports: {} } });
(async () => {
  try {
    const value = await vm.runInThisContext(fs.readFileSync(FILE, 'utf8'), { filename: FILE });
    tell(value === undefined ? {} : { value: cut(inspect(value)) });
  } catch (error) {
    failed(error);
  }
})();

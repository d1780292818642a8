import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { commands } from '../../src/cli/commands'
import { completion } from '../../src/cli/completion/completion'

/** Runs the scripts in real shells. */

const shells = ['bash', 'zsh', 'fish'] as const
type Shell = (typeof shells)[number]

const directory = mkdtempSync(join(tmpdir(), 'turnpike-completion-'))
beforeAll(() => {
  for (const name of ['merchants.toml', 'my shop.toml']) writeFileSync(join(directory, name), '')
  mkdirSync(join(directory, 'mine'))
  for (const shell of shells) writeFileSync(join(directory, shell), completion(shell))
  const main = join(import.meta.dir, '../../src/main.ts')
  const program = `#!/bin/sh\nexec '${process.execPath}' '${main}' "$@"\n`
  writeFileSync(join(directory, 'turnpike'), program, { mode: 0o755 })
})
afterAll(() => rmSync(directory, { recursive: true, force: true }))

/** bash calls the function with the words of the line, of which `=` is one. */
const bash = `source ./bash
complete -p turnpike >/dev/null || exit 1
for line; do
  echo "LINE"
  IFS=' ' read -ra COMP_WORDS <<<"\${line//=/ = }"
  if [[ $line == *' ' || $line == *= ]]; then COMP_WORDS+=(''); fi
  COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _turnpike 2>/dev/null
  for hit in "\${COMPREPLY[@]}"; do echo "$hit"; done
done
`

const fish = `source ./fish
for line in $argv
  echo LINE
  complete -C $line | string split -f 1 \\t
end
true
`

/**
 * zsh completes only at a terminal: zpty is one, and a function reports what would be listed. Keys
 * are sent only while the line editor runs, because the terminal itself would treat them otherwise.
 */
const zsh = `zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1= PS2=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; source ./zsh
  compadd() { local -a hits; local hit
    case "$*" in (*-[OAD] *) builtin compadd "$@"; return;; esac
    builtin compadd -A hits "$@"; for hit in $hits; do print -r -- "HIT:$hit"; done; builtin compadd "$@" }
  _report() { _main_complete; compstate[insert]=; compstate[list]= }
  zle -C report complete-word _report; bindkey "^I" report
  zle-line-init() { print EDI\\TOR }; zle -N zle-line-init'
await_editor() {
  out=
  while zpty -r z part "*EDITOR*"; do out+=$part; [[ $part == *EDITOR* ]] && break; done
}
await_editor
for line; do
  echo LINE
  zpty -w -n z "$line"$'\t\x15\n'
  await_editor
  print -r -- "$out" | tr -d '\r' | sed -n 's/^.*HIT://p'
done
zpty -d z
`

const drivers: Readonly<Record<Shell, (path: string) => [string[], string]>> = {
  bash: (path) => [[path, '--norc', '--noprofile', '-s', '--'], bash],
  zsh: (path) => [[path, '-f', './driver'], zsh],
  fish: (path) => [[path, '--no-config', './driver'], fish],
}

/** What a shell offers for each line, without the signs by which shells mark a directory. */
async function offered(shell: Shell, path: string, lines: readonly string[]): Promise<string[][]> {
  const [command, driver] = drivers[shell](path)
  if (shell !== 'bash') writeFileSync(join(directory, 'driver'), driver)
  const child = Bun.spawn([...command, ...lines], {
    cwd: directory,
    // A home without a configuration, which fish also writes to.
    env: { PATH: `${directory}:${process.env.PATH}`, HOME: join(directory, 'mine'), TERM: 'dumb' },
    stdin: shell === 'bash' ? new Blob([driver]) : 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, problems] = await Promise.all([child.stdout.text(), child.stderr.text()])
  expect([await child.exited, problems]).toEqual([0, ''])
  const [, ...parts] = out.split(/^LINE$/m)
  return parts.map((part) => {
    const hits = part.split('\n').map((hit) => hit.replaceAll('\\', '').replace(/\/$/, ''))
    return [...new Set(hits.filter((hit) => hit !== ''))].sort()
  })
}

const names = [...Object.keys(commands), 'help'].sort()
const optionsOf = (name: keyof typeof commands) =>
  [...Object.keys(commands[name].options), 'help'].map((option) => `--${option}`).sort()

const cases: readonly [line: string, offers: readonly string[]][] = [
  ['turnpike ', names],
  ['turnpike ver', ['version']],
  ['turnpike help back', ['backup']],
  ['turnpike orders ', ['list', 'retry', 'show']],
  ['turnpike orders list ', []],
  ['turnpike completion ', ['bash', 'fish', 'zsh']],
  ['turnpike pay --', optionsOf('pay')],
  ['turnpike backup --', optionsOf('backup')],
  ['turnpike pay --protocol ', []],
  ['turnpike check --config m', ['merchants.toml', 'mine', 'my shop.toml']],
  ['turnpike check --config=me', ['merchants.toml']],
  ['turnpike backup m', ['merchants.toml', 'mine', 'my shop.toml']],
  ['turnpike backup --data m', ['mine']],
  // The value of an option is no command.
  ['turnpike --config orders ver', ['version']],
  ['turnpike --data mine orders ', ['list', 'retry', 'show']],
]

describe('completion', () => {
  for (const shell of shells) {
    const path = Bun.which(shell)
    if (path === null)
      process.stderr.write(
        `SKIPPED: the completion of ${shell} needs it (apt-get install ${shell})\n`,
      )
    test.skipIf(path === null)(`${shell} offers what the table of commands has`, async () => {
      const lines = cases.map(([line]) => line)
      const offers = await offered(shell, path ?? '', lines)
      expect(offers.map((hits, index) => [lines[index], expected(shell, index, hits)])).toEqual(
        cases.map(([line, hits]) => [line, hits]),
      )
    })
  }

  /** fish prints the option with its value. */
  function expected(shell: Shell, index: number, hits: string[]): readonly string[] {
    const isValue = shell === 'fish' && cases[index]?.[0].includes('=')
    return isValue ? hits.map((hit) => hit.replace(/^--\w+=/, '')) : hits
  }

  test('error: another shell has no script, and the command says which there are', () => {
    expect(() => completion('tcsh')).toThrow('no completion for tcsh')
    expect(Object.keys(commands.completion.verbs ?? {})).toEqual([...shells])
  })
})

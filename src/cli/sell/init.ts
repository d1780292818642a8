import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { builtIns, findBuiltIn } from '../../config/builtin'
import { codeOf, type Env } from '../../config/env'
import { parseConfig } from '../../config/merchants'
import { isPrivate } from '../../config/values'
import type { Run } from '../commands'
import { self } from '../words'
import { check } from './check'

type Options = Run<'init'>
/** Asks on the terminal; undefined at its end. Absent without a terminal. */
type Ask = ((question: string) => Promise<string | undefined>) | undefined

/** Answers so far. */
type Given = { [Name in keyof Answers]?: Answers[Name] | undefined }

type Question = { name: 'upstream' | 'price' | 'networks' | 'payout'; text: string }

const questions: readonly Question[] = [
  { name: 'upstream', text: 'What API do you sell? Its URL, such as https://api.example.com' },
  { name: 'price', text: 'What does a request cost, in USD?' },
  {
    name: 'networks',
    text: 'Which networks? Of base, robinhood and base-sepolia (test money), with commas',
  },
  { name: 'payout', text: 'Which wallet is paid? Its address, 0x...' },
]

/** Answers of a terminal where nothing is typed. */
const usual: Given = { price: '0.01', networks: 'base' }

/**
 * Writes a configuration that sells one API, from the options or from answers on the terminal, and
 * checks it. Overwrites nothing. Returns the exit code: 2 for wrong or missing options.
 */
export async function init(options: Options, ask: Ask): Promise<number> {
  const { file, err } = options
  if (existsSync(file)) {
    err(`turnpike: ${file} is there already, and init overwrites nothing: name another by --config`)
    return 1
  }
  const faults = wrongOptions(options)
  if (faults.length > 0) {
    for (const fault of faults) err(`turnpike: ${fault}`)
    return 2
  }
  const missing = questions.filter(({ name }) => options[name] === undefined)
  if (missing.length > 0 && ask === undefined) {
    err(
      `turnpike: init has no terminal to ask on; add ${missing.map(({ name }) => `--${name}`).join(', ')}`,
    )
    err(
      `  ${self()} init --upstream https://api.example.com --price 0.01 --networks base --payout 0x...`,
    )
    return 2
  }
  const answers = await complete(options, ask)
  if (answers === undefined) {
    err('turnpike: nothing is written: the answers ended before the last question')
    return 1
  }
  const fault = write(file, compose(answers))
  if (fault !== undefined) {
    err(`turnpike: ${fault}`)
    return 1
  }
  return finish(options, answers)
}

/** The faults of every option, each with the options before it. */
function wrongOptions(options: Options): string[] {
  const known: Given = {}
  return (['upstream', 'price', 'networks', 'rpc', 'payout'] as const).flatMap((name) => {
    const value = options[name]
    if (value === undefined) return []
    const fault = faultOf({ ...known, [name]: value }, name, options.env)
    if (fault === undefined) known[name] = value
    return fault === undefined ? [] : [`--${name}${fault.startsWith(' ') ? '' : ': '}${fault}`]
  })
}

/**
 * Why an answer is wrong; undefined when it is right. The file with this answer is read like any
 * other, with samples for missing answers. A fault of the key itself begins with a blank.
 */
function faultOf(known: Given, name: string, env: Env): string | undefined {
  if (known.rpc !== undefined && networksIn(known.networks ?? '').length > 1)
    return name === 'rpc'
      ? ' is a node of one network: name one by --networks'
      : ' must be one: --rpc names one node'
  const text = compose(withDefaults(known))
  const key = name === 'rpc' ? 'rpc_urls' : name
  const { faults } = parseConfig(text, { file: '', env })
  // One answer may be in two places of the file.
  const fault = faults.find(({ message }) => message.startsWith(key)) ?? faults[0]
  // A question needs no quotes of TOML.
  const message = fault?.message.replace(/,? in quotes/, '')
  return message?.replace(new RegExp(`^${key}(\\[\\d+\\])? `), ' ')
}

function withDefaults(known: Given): Answers {
  const given = Object.entries(known).filter(([, answer]) => answer !== undefined)
  return { ...defaults, ...Object.fromEntries(given) }
}

/** Asks what the options leave open; undefined when the terminal ends. */
async function complete(options: Options, ask: Ask): Promise<Answers | undefined> {
  const { upstream, price, networks, payout, rpc, env, out } = options
  const known: Given = { upstream, price, networks, payout, rpc }
  for (const { name, text } of questions) {
    while (known[name] === undefined) {
      const fallback = usual[name]
      const typed = await ask?.(`${text}${fallback === undefined ? '' : ` [${fallback}]`}\n> `)
      if (typed === undefined) return undefined
      const answer = typed.trim() || (fallback ?? '')
      const fault = faultOf({ ...known, [name]: answer }, name, env)
      if (fault === undefined) known[name] = answer
      else out(`${fault.startsWith(' ') ? `The ${name}` : ''}${fault}.`)
    }
  }
  return withDefaults(known)
}

/** Writes a new file; a fault when it cannot. Another program may create it at the same time. */
function write(file: string, text: string): string | undefined {
  try {
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, text, { flag: 'wx' })
    return undefined
  } catch (error) {
    return `${file} cannot be written (${codeOf(error)}): name another place by --config`
  }
}

async function finish(options: Options, answers: Answers): Promise<number> {
  const { file, out } = options
  out(`wrote ${file}`)
  const code = await check(options)
  const config = file === 'merchants.toml' ? '' : ` --config ${file}`
  const program = self()
  if (code !== 0) {
    out(`\nCorrect it, then run ${program} check${config}`)
    return code
  }
  out(`
Start it. It prints the address that pays gas: send it some ETH.
  ${program} serve${config}

Ask for the price: every path of ${answers.upstream} is sold below this address.
  curl -i http://localhost:4020/m/${slugOf(answers.upstream)}`)
  return 0
}

/** The answers for a new file, as they were typed. */
type Answers = {
  /** URL of the API that is sold. */
  upstream: string
  /** USD per request. */
  price: string
  /** Words or CAIP-2 ids, with commas or blanks. */
  networks: string
  /** Address of the wallet that is paid. */
  payout: string
  /** URL of a node; undefined: the public ones. */
  rpc: string | undefined
}

/** Samples without a fault, for answers that are not known yet. */
export const defaults: Answers = {
  upstream: 'https://api.example.com',
  price: '0.01',
  networks: 'base',
  payout: '0x1111111111111111111111111111111111111111',
  rpc: undefined,
}

/** The text of a file of at most 25 lines that sells every path of an API at one price. */
export function compose({ upstream, price, networks, payout, rpc }: Answers): string {
  const names = networksIn(networks)
  const hasTestnet = names.some((name) => findBuiltIn(name)?.table.testnet === true)
  const list = `[${names.map((name) => JSON.stringify(name)).join(', ')}]`
  const url = URL.parse(upstream)
  const isOpen = url !== null && url.protocol === 'https:' && !isPrivate(url)
  const slug = slugOf(upstream)
  const usd = JSON.stringify(price.replace(/^\$\s*/, ''))
  const isLong = hasTestnet && rpc !== undefined
  return [
    `# What turnpike sells. After a change: turnpike check. ${reference('NAME')} is read from the environment.`,
    '[service]',
    said('base_url = "http://localhost:4020"', 'as buyers see it: https://pay.example.com'),
    said(`payout = ${JSON.stringify(payout)}`, 'the wallet that is paid'),
    said(`networks = ${list}`, `known: ${builtIns.map(({ word }) => word).join(', ')}`),
    ...(isLong ? [] : [said('# contact = "you@your.domain"', 'published in documents')]),
    '',
    ...nodes(names[0] ?? '', rpc, hasTestnet),
    said('[facilitator]', 'settles x402 payments to this wallet'),
    said(`min_amount = ${usd}`, 'the least that is worth the gas'),
    '',
    '[[merchants]]',
    said(`slug = ${JSON.stringify(slug)}`, `buyers ask below /m/${slug}`),
    `upstream = ${JSON.stringify(upstream)}`,
    ...(isOpen ? [] : [said('allow_private = true', 'for plain http and private addresses')]),
    ...(hasTestnet ? [`networks = ${list}`, said('testnet_ok = true', 'for test money')] : []),
    ...(isLong ? [] : [said(header, 'a key of the upstream')]),
    '[[merchants.routes]]',
    said('path = "/"', 'each path that no other route has'),
    'methods = ["GET", "POST"]',
    said(`price = ${usd}`, 'USD per request'),
    said('# [[merchants.routes]]', 'a second route, with its own price'),
    '# path = "/report"',
    '# price = "0.05"',
    '',
  ].join('\n')
}

const header = `# headers = { Authorization = "Bearer ${reference('API_KEY')}" }`

/** The block of a node: a comment without one, and nothing for test money. */
function nodes(name: string, rpc: string | undefined, hasTestnet: boolean): string[] {
  const header = `[networks.${JSON.stringify(findBuiltIn(name.toLowerCase())?.id ?? name)}]`
  if (rpc !== undefined)
    return [
      said(header, 'its keys replace built-in ones'),
      `rpc_urls = [${JSON.stringify(rpc)}]`,
      '',
    ]
  if (hasTestnet) return []
  return [
    said(`# ${header}`, 'your node: public ones are limited'),
    '# rpc_urls = ["https://..."]',
    '',
  ]
}

/** The words or ids of an answer. */
function networksIn(answer: string): string[] {
  const names = answer.toLowerCase().split(/[\s,]+/)
  return names.filter((name) => name !== '')
}

/** `open-meteo` of https://api.open-meteo.com, and `api` of an address. */
export function slugOf(upstream: string): string {
  const url = URL.parse(upstream)
  if (url === null || isPrivate(url) || /^[\d.]+$|^\[/.test(url.hostname)) return 'api'
  const labels = url.hostname.split('.').filter((label) => !/^(api|www|)$/.test(label))
  const slug = labels[0]?.replace(/[^a-z0-9-]/g, '-')
  return slug === undefined || slug === '' || labels.length < 2 ? 'api' : slug
}

/** A name in the environment, as the file writes it. */
function reference(name: string): string {
  return `\${${name}}`
}

/** A line with its comment at one column. */
function said(line: string, comment: string): string {
  return `${line.padEnd(54)} # ${comment}`
}

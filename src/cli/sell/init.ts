import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { builtIns, findBuiltIn } from '../../config/builtin'
import { codeOf, type Env } from '../../config/env'
import { parseConfig } from '../../config/merchants'
import { isWrong } from '../../config/reader'
import { isPrivate, listen as readListen } from '../../config/values'
import type { Run } from '../commands'
import { self } from '../words'
import { check } from './check'

type Options = Run<'init'>
/** Asks on the terminal; undefined at its end. Absent without a terminal. */
type Ask = ((question: string) => Promise<string | undefined>) | undefined

/** Answers so far. */
type Given = { [Name in keyof Answers]?: Answers[Name] | undefined }

type Question = { name: 'upstream' | 'title' | 'price' | 'networks' | 'payout'; text: string }

const questions: readonly Question[] = [
  { name: 'upstream', text: 'What API do you sell? Its URL, such as https://api.example.com' },
  { name: 'title', text: 'What is your service called, on its pages?' },
  { name: 'price', text: 'What does a request cost, in USD?' },
  {
    name: 'networks',
    text: 'Which networks? Of base, robinhood and base-sepolia (test money), with commas',
  },
  { name: 'payout', text: 'Which wallet is paid? Its address, 0x...' },
]

/** Answers of a terminal where nothing is typed. */
const usual: Given = { price: '0.01', networks: 'base' }

/** What a specification of the API adds. */
type Imported = {
  /** Of the options that name its operations. */
  faults: readonly string[]
  answers: Given
  usual: Given
  compose(answers: Answers): (Made & { text: string }) | { fault: string }
}

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
  const imported = options.openapi === undefined ? undefined : await importFrom(options)
  const faults = [...wrongOptions(options), ...(imported?.faults ?? [])]
  if (options['price-for'] !== undefined && imported === undefined)
    faults.push('--price-for needs --openapi, whose operations it names')
  if (faults.length > 0) {
    for (const fault of faults) err(`turnpike: ${fault}`)
    return 2
  }
  const given = { ...imported?.answers, ...answersIn(options) }
  const missing = questions.filter(({ name }) => name !== 'title' && given[name] === undefined)
  if (missing.length > 0 && ask === undefined) {
    err(
      `turnpike: init has no terminal to ask on; add ${missing.map(({ name }) => `--${name}`).join(', ')}`,
    )
    const sample = imported?.usual.upstream ?? 'https://api.example.com'
    err(`  ${self()} init --upstream ${sample} --price 0.01 --networks base --payout 0x...`)
    return 2
  }
  // The title alone is not worth a question.
  const asked = missing.length === 0 ? undefined : ask
  const answers = await complete(given, {
    options,
    ask: asked,
    usual: { ...usual, ...imported?.usual },
  })
  if (answers === undefined) {
    err('turnpike: nothing is written: the answers ended before the last question')
    return 1
  }
  const made = imported?.compose(answers) ?? {
    text: compose(answers),
    notes: [],
    asking: `${baseUrlOf(answers)}/m/${slugOf(answers.upstream)}`,
  }
  if ('fault' in made) {
    err(`turnpike: ${made.fault}`)
    return 2
  }
  const fault = write(file, made.text)
  if (fault !== undefined) {
    err(`turnpike: ${fault}`)
    return 1
  }
  return finish(options, answers, made)
}

function answersIn({ upstream, title, price, networks, payout, rpc, listen }: Options): Given {
  const all = Object.entries({ upstream, title, price, networks, payout, rpc, listen })
  return Object.fromEntries(all.filter(([, answer]) => answer !== undefined))
}

/** Loaded here, because no other use of the program needs its parsers. */
async function importFrom({ openapi = '', env, ...options }: Options): Promise<Imported> {
  const { readDocument } = await import('../openapi/document')
  const { compose, readRules, titleOf, upstreamOf } = await import('../openapi/compose')
  const document = await readDocument(openapi)
  const found = upstreamOf(document)
  const title = titleOf(document)
  const read = options['price-for'] === undefined ? [] : readRules(options['price-for'])
  const [rules, faults] = typeof read === 'string' ? [[], [`--price-for ${read}`]] : [read, []]
  return {
    faults,
    answers: found?.isTrusted ? { upstream: found.upstream, title } : { title },
    usual: { upstream: found?.upstream },
    compose(answers) {
      const slug = slugOf(answers.upstream, answers.title)
      const { head, more } = partsOf(answers)
      const price = usdOf(answers)
      const { upstream } = answers
      const made = compose({ document, slug, upstream, price, rules, head, more, env })
      const [unused] = made.unused
      if (unused !== undefined) return { fault: `--price-for ${unused} fits no operation` }
      if (made.sold.length === 0) return { fault: `${openapi} has no operation that can be sold` }
      const [wrong] = made.faults
      if (wrong !== undefined) return { fault: `${openapi}: ${wrong}` }
      const all = made.sold.length + made.leftOut.length
      const notes = made.leftOut.map(({ key, reason }) => `left out: ${key}: ${reason}`)
      return {
        text: made.text,
        notes: [`${made.sold.length} of ${all} operations of ${openapi} become routes`, ...notes],
        asking: made.asking,
      }
    },
  }
}

/** The faults of every option, each with the options before it. */
function wrongOptions(options: Options): string[] {
  const known: Given = {}
  return (['upstream', 'title', 'listen', 'price', 'networks', 'rpc', 'payout'] as const).flatMap(
    (name) => {
      const value = options[name]
      if (value === undefined) return []
      const fault = faultOf({ ...known, [name]: value }, name, options.env)
      if (fault === undefined) known[name] = value
      return fault === undefined ? [] : [`--${name}${fault.startsWith(' ') ? '' : ': '}${fault}`]
    },
  )
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

type Asking = { options: Options; ask: Ask; usual: Given }

/** Asks what the answers leave open; undefined when the terminal ends. */
async function complete(
  given: Given,
  { options: { env, out }, ask, usual }: Asking,
): Promise<Answers | undefined> {
  const known: Given = { ...given }
  for (const { name, text } of ask === undefined ? [] : questions) {
    while (known[name] === undefined) {
      const fallback = usual[name] ?? (name === 'title' ? titleFor(known.upstream) : undefined)
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

/** `Open meteo` of https://api.open-meteo.com. */
function titleFor(upstream = ''): string {
  const words = slugOf(upstream).replaceAll('-', ' ')
  return words === 'api' ? 'Turnpike' : words.charAt(0).toUpperCase() + words.slice(1)
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

/** `asking`: arguments of curl for a first request. */
type Made = { notes: readonly string[]; asking: string }

async function finish(
  options: Options,
  answers: Answers,
  { notes, asking }: Made,
): Promise<number> {
  const { file, out } = options
  for (const note of notes) out(note)
  out(`wrote ${file}`)
  const code = await check({ ...options, openapi: undefined })
  const config = file === 'merchants.toml' ? '' : ` --config ${file}`
  const program = self()
  if (code !== 0) {
    out(`\nCorrect it, then run ${program} check${config}`)
    return code
  }
  const what = options.openapi === undefined ? `every path of ${answers.upstream}` : 'each route'
  out(`
Start it. It prints the address that pays gas: send it some ETH.
  ${program} serve${config}

Ask for the price: ${what} is sold below this address.
  curl -i ${asking}`)
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
  /** Name of the service, and where it listens; undefined: the defaults. */
  title: string | undefined
  listen: string | undefined
}

/** Samples without a fault, for answers that are not known yet. */
export const defaults: Answers = {
  upstream: 'https://api.example.com',
  price: '0.01',
  networks: 'base',
  payout: '0x1111111111111111111111111111111111111111',
  rpc: undefined,
  title: undefined,
  listen: undefined,
}

const linesMax = 25

/** The text of a file of at most 25 lines that sells every path of an API at one price. */
export function compose(answers: Answers): string {
  const { head, more } = partsOf(answers)
  const slug = slugOf(answers.upstream)
  const usd = usdOf(answers)
  const lines = [
    ...head(usd),
    '[[merchants]]',
    said(`slug = ${JSON.stringify(slug)}`, `buyers ask below /m/${slug}`),
    ...more,
    said(header, 'a key of the upstream'),
    '[[merchants.routes]]',
    said('path = "/"', 'each path that no other route has'),
    'methods = ["GET", "POST"]',
    said(`price = ${JSON.stringify(usd)}`, 'USD per request'),
    said('# [[merchants.routes]]', 'a second route, with its own price'),
    '# path = "/report"',
    '# price = "0.05"',
    '',
  ]
  // Hints that a long file does without.
  for (const hint of ['# contact', '# headers', ''])
    if (lines.length > linesMax + 1)
      lines.splice(
        lines.findIndex((line) => line.startsWith(hint) && (hint !== '' || line === '')),
        1,
      )
  return lines.join('\n')
}

function usdOf({ price }: Answers): string {
  return price.replace(/^\$\s*/, '')
}

/** What all files of init have: the lines before the merchant, and those of its upstream. */
function partsOf(answers: Answers) {
  const { upstream, payout, networks, rpc, title, listen } = answers
  const names = networksIn(networks)
  const hasTestnet = names.some((name) => findBuiltIn(name)?.table.testnet === true)
  const list = `[${names.map((name) => JSON.stringify(name)).join(', ')}]`
  const url = URL.parse(upstream)
  const isOpen = url !== null && url.protocol === 'https:' && !isPrivate(url)
  return {
    head: (lowest: string) => [
      `# What turnpike sells. After a change: turnpike check. ${reference('NAME')} is read from the environment.`,
      '[service]',
      ...(title === undefined ? [] : [said(`title = ${JSON.stringify(title)}`, 'on the pages')]),
      said(`base_url = "${baseUrlOf(answers)}"`, 'as buyers see it: https://pay.example.com'),
      ...(listen === undefined ? [] : [`listen = ${JSON.stringify(listen)}`]),
      said(`payout = ${JSON.stringify(payout)}`, 'the wallet that is paid'),
      said(`networks = ${list}`, `known: ${builtIns.map(({ word }) => word).join(', ')}`),
      said('# contact = "you@your.domain"', 'published in documents'),
      '',
      ...nodes(names[0] ?? '', rpc, hasTestnet),
      said('[facilitator]', 'settles x402 payments to this wallet'),
      said(`min_amount = ${JSON.stringify(lowest)}`, 'the least that is worth the gas'),
      '',
    ],
    more: [
      `upstream = ${JSON.stringify(upstream)}`,
      ...(isOpen ? [] : [said('allow_private = true', 'for plain http and private addresses')]),
      ...(hasTestnet ? [`networks = ${list}`, said('testnet_ok = true', 'for test money')] : []),
    ],
  }
}

/** Where a browser of this machine reaches the service. */
function baseUrlOf({ listen }: Answers): string {
  const place = readListen(listen)
  return `http://localhost:${isWrong(place) ? 4020 : place.port}`
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

/** `open-meteo` of https://api.open-meteo.com; of an address the title, or `api`. */
export function slugOf(upstream: string, title?: string): string {
  const url = URL.parse(upstream)
  const isName = url !== null && !isPrivate(url) && !/^[\d.]+$|^\[/.test(url.hostname)
  const labels = isName ? url.hostname.split('.') : []
  const names = labels.filter((label) => !/^(api|www|)$/.test(label))
  const [name = ''] = names.length < 2 ? [title?.toLowerCase().slice(0, 40)] : names
  return name.replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '') || 'api'
}

/** A name in the environment, as the file writes it. */
function reference(name: string): string {
  return `\${${name}}`
}

/** A line with its comment at one column. */
function said(line: string, comment: string): string {
  return `${line.padEnd(54)} # ${comment}`
}

import { readEnv } from '../../config/env'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'
import { encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import { CommandError, failed } from '../Command'
import type { Run } from '../commands'
import { question } from '../terminal'
import { approve, signPermit, type Wallet } from './allowance'
import { readAnswerText } from './body'
import { begunOf, buyByChannel, channelsOf, depositOf, hasChannel, replyOf } from './by-channel'
import * as Credential from './Credential'
import { type ChannelFiles, openChannelFiles, stateFile } from './channel-files'
import { useEntitlement } from './entitlement'
import { chooseFunded } from './funds'
import { isAmount, payKeyIn, readKey, readWays } from './key'
import { type BuyRequest, finishPurchase, oneLine, problemOf, say } from './outcome'
import * as SignIn from './SignIn'
import * as Terms from './Terms'
import * as Voucher from './Voucher'

/** `ask` asks on the terminal; undefined without one. */
type Options = Run<'pay'> & { ask: ReturnType<typeof question> }

type Buyer = Wallet & { files: ChannelFiles }

/** The most that is signed without --max, in dollars: after a question, and without one. */
const most = { asked: '1', unasked: '0.01' }

/** How long the same credential is presented again while its settlement is pending, ms. */
const pendingMs = 60_000

/** Why nothing can be bought. */
class PayError extends CommandError {
  override readonly name = 'PayError'
  /** What was offered. */
  readonly offered: readonly Terms.Terms[]

  constructor(message: string, offered: readonly Terms.Terms[] = []) {
    super(message)
    this.offered = offered
  }
}

/**
 * Buys one request with a private key. The answer's body goes to stdout, everything else to stderr.
 * Returns the exit code: 0 when the answer was delivered and its receipt, if signed, is valid.
 */
export async function pay(args: Run<'pay'>): Promise<number> {
  const options = { ...args, ask: question() }
  try {
    const purchase = parse(options)
    if (options.redeem === undefined) return await buy(purchase, options)
    const redeemed = await send(purchase, { 'payment-redeem': options.redeem })
    return await finishPurchase(redeemed, purchase, undefined)
  } catch (error) {
    const code = failed(error, say)
    if (error instanceof PayError)
      for (const terms of error.offered) say(`  ${Terms.describe(terms)}`)
    return code
  }
}

function parse(options: Options): BuyRequest {
  const { protocol, transfer, body, now } = options
  const url = URL.parse(options.operand)
  if (url === null) throw new PayError(`${options.operand} is not an absolute URL.`)
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new PayError('Only http and https URLs can be bought.')
  if (protocol !== undefined && protocol !== 'mpp' && protocol !== 'x402')
    throw new PayError('--protocol is mpp or x402.')
  const { scheme = 'exact', network } = readWays(options)
  if (scheme !== 'exact' && protocol === 'mpp')
    throw new PayError(`--scheme ${scheme} is a scheme of x402: MPP has none. Omit --protocol mpp.`)
  if (options.deposit !== undefined && scheme !== 'channel')
    throw new PayError('--deposit is for --scheme channel.')
  if (options.deposit !== undefined && !isAmount(options.deposit))
    throw new PayError('--deposit is an amount such as 1.00.')
  if (scheme === 'upto' && transfer === 'eip3009')
    throw new PayError('--scheme upto is paid by permit2 only. Omit --transfer eip3009.')
  if (options.scheme !== undefined && options.redeem !== undefined)
    throw new PayError('--redeem asks again without paying, so it takes no --scheme.')
  if (options['dry-run'] && options.redeem !== undefined)
    throw new PayError('--redeem pays nothing, so it takes no --dry-run.')
  const { 'sign-in-only': only, 'no-sign-in': never, 'dry-run': isRehearsal, redeem } = options
  if (only && (never || isRehearsal || redeem !== undefined))
    throw new PayError('--sign-in-only takes no --no-sign-in, --dry-run and --redeem.')
  if (transfer !== undefined && transfer !== 'eip3009' && transfer !== 'permit2')
    throw new PayError('--transfer is eip3009 or permit2.')
  const method = (options.method ?? (body === undefined ? 'GET' : 'POST')).toUpperCase()
  if (body !== undefined && (method === 'GET' || method === 'HEAD'))
    throw new PayError(`${method} takes no --body.`)
  const max = limitOf(options)
  return { url, method, body, wanted: { protocol, scheme, network, transfer }, max, now }
}

function limitOf({ max, ask, 'dry-run': isRehearsal }: Options): BuyRequest['max'] {
  if (max !== undefined && !isAmount(max)) throw new PayError('--max is an amount such as 0.25.')
  if (max !== undefined) return { amount: max, exceeded: `More than --max ${max} is asked` }
  const amount = isRehearsal || ask !== undefined ? most.asked : most.unasked
  return { amount, exceeded: `More than ${amount} USD is asked, so --max must allow it` }
}

async function buy(purchase: BuyRequest, options: Options): Promise<number> {
  const { rpc, 'dry-run': isRehearsal, key, env } = options
  // Without a key a rehearsal does not consider the balances of the wallet.
  const isKeyless = isRehearsal && key === undefined && readEnv(env)('PAY_KEY') === undefined
  const signerOf = () => (key === undefined ? payKeyIn(env, '--key HEX or PAY_KEY.') : readKey(key))
  const common = { rpc, now: purchase.now, files: openChannelFiles(stateFile({ env })) }
  const wallet = isKeyless ? undefined : { ...common, ...signerOf() }
  let asked = await send(purchase, {})
  if (!isRehearsal && wallet !== undefined) asked = await signIn(asked, purchase, wallet, options)
  if (asked.status !== 402) return finishPurchase(asked, purchase, undefined)
  const offered = await read(asked)
  const terms = await choose(offered, purchase, wallet)
  if (isRehearsal || wallet === undefined) {
    if (!options['no-sign-in'] && SignIn.read(asked.headers, purchase.url) !== undefined)
      say('sign-in    before a payment: the wallet may have this without one')
    return rehearse(terms, offered, wallet)
  }
  if (!(await isAllowed(terms, options))) return 1
  if (terms.scheme === 'channel') return payByChannel(terms, purchase, wallet, options)
  const { credential, response } = await payBy(terms, purchase, wallet)
  if (!(await lacksAllowance(response, terms)))
    return finishPurchase(response, purchase, credential)
  say('           the wallet has never approved Permit2 for this token')
  const bySignature = offered.find(
    (other) => Terms.takesPermit(other) && Terms.isSame(other, terms) && isWanted(other, purchase),
  )
  const permit = bySignature && (await signPermit(bySignature, wallet))
  let fresh = bySignature
  if (fresh === undefined) {
    await approve(terms, wallet, purchase.url)
    // The refused credential may not be presented again: its challenge was for another attempt.
    const again = await send(purchase, {})
    if (again.status !== 402) return finishPurchase(again, purchase, undefined)
    const same = (await read(again)).filter((other) => Terms.isSame(other, terms))
    fresh = await choose(same, purchase, wallet)
  }
  const paid = await payBy(fresh, purchase, wallet, permit)
  return finishPurchase(paid.response, purchase, paid.credential)
}

/** Pays by a channel, whose deposit --deposit allows, or --max. */
async function payByChannel(
  terms: Terms.Terms,
  purchase: BuyRequest,
  wallet: Buyer,
  options: Options,
): Promise<number> {
  const { url, max } = purchase
  const { asset, payTo } = terms
  const atomic = (amount: string) => Amount.fromDecimal(amount, asset.decimals)
  const bought = { ...wallet, terms, url: url.href, request: idOf(purchase) }
  say(`402        ${Terms.describe(terms)}`)
  const allow = async ({ amountAtomic }: Voucher.Deposit, id: string) => {
    const amount = Terms.amountOf(terms, amountAtomic)
    const days = (terms.channel?.withdrawDelay ?? 0) / 86_400
    if (options.deposit === undefined && amountAtomic > atomic(max.amount))
      throw new PayError(`The channel needs a deposit of ${amount}, so --deposit must allow it.`)
    const isStated = options.deposit !== undefined || options.max !== undefined
    const question = `Deposit ${amount} into a channel with ${payTo}? [y/N] `
    if (!isStated && amountAtomic > atomic(most.unasked) && !(await isYes(options, question)))
      throw new PayError('Nothing was paid.')
    say(`deposit    ${amount} for ${payTo} into ${id}`)
    say(`           without the merchant it can be withdrawn after ${Number(days.toFixed(2))} days`)
  }
  const depositAtomic = options.deposit === undefined ? undefined : atomic(options.deposit)
  return buyByChannel<Response, number>(
    { ...bought, depositAtomic, maxAtomic: atomic(max.amount), allow },
    {
      send: async (sent) => {
        const answer = await sendVoucher(sent, purchase, terms, wallet)
        return { answer, reply: await replyOf(answer) }
      },
      finish: async (answer, { next, chargedAtomic, fault }) => {
        if (fault !== undefined) say(`turnpike: the server is not believed: ${fault}`)
        const code = await finishPurchase(answer, purchase, { terms, payer: wallet.payer })
        if (chargedAtomic !== undefined) say(`charge     ${Terms.amountOf(terms, chargedAtomic)}`)
        say(`channel    ${Terms.amountOf(terms, Voucher.restOf(next))} are left`)
        return fault === undefined ? code : 1
      },
    },
  )
}

/** Identifies a request among those that are paid by channels. */
function idOf({ method, url, body = '' }: BuyRequest): string {
  return Crypto.sha256(JSON.stringify([method, url.href, body]))
}

/** Sends a payment by a channel. Approves Permit2 for its deposit where that is missing. */
async function sendVoucher(
  { payment: text, idempotencyKey: key }: Voucher.Sent,
  purchase: BuyRequest,
  terms: Terms.Terms,
  wallet: Wallet,
): Promise<Response> {
  const header = 'payment-signature'
  const payment: Json.JsonObject = JSON.parse(text)
  const response = await present(purchase, { header, value: encodeJson(payment) }, key)
  if (!(await lacksAllowance(response, terms))) return response
  const deposit = Json.optional(Json.read(payment, 'payload', 'object'), 'deposit', 'object')
  if (deposit === undefined) return response
  say('           the wallet has never approved Permit2 for this token')
  const whole = { ...terms, amountAtomic: Json.read(deposit, 'amount', 'uint') }
  const permit = Terms.takesPermit(whole) && (await signPermit(whole, wallet))
  if (!permit) await approve(whole, wallet, purchase.url)
  const extensions = Json.optional(payment, 'extensions', 'object')
  const permitted = permit && { extensions: Credential.withPermit(extensions, permit) }
  return present(purchase, { header, value: encodeJson({ ...payment, ...permitted }) }, key)
}

/**
 * Signs in where the 402 offers it: the answer, or a 402 that can be paid. Throws a PayError when
 * nothing may be paid.
 */
async function signIn(
  asked: Response,
  purchase: BuyRequest,
  { privateKey }: Wallet,
  options: Options,
): Promise<Response> {
  const { url, wanted } = purchase
  if (asked.status !== 402 || options['no-sign-in']) return asked
  const used = await useEntitlement(asked, {
    ...{ url, privateKey, network: wanted.network },
    send: (headers) => send(purchase, headers),
  })
  if (used.kind === 'answered') return used.response
  if (options['sign-in-only'])
    throw new PayError(`Nothing was paid: ${used.why ?? 'the 402 offers no sign-in'}.`)
  if (used.why !== undefined) say(`sign-in    nothing to use: ${used.why}`)
  return used.response
}

/** Shows what would be paid. */
function rehearse(
  terms: Terms.Terms,
  offered: readonly Terms.Terms[],
  wallet: Wallet | undefined,
): number {
  say(`402        ${Terms.describe(terms)}`)
  say(`would pay  ${wallet?.payer ?? 'the wallet'} -> ${terms.payTo}; nothing is signed`)
  if (terms.scheme === 'channel') {
    const amount = Terms.amountOf(terms, depositOf(terms, terms.amountAtomic))
    say(`           from a channel, with a deposit of ${amount} where too little is left`)
  }
  for (const other of offered) if (other !== terms) say(`or         ${Terms.describe(other)}`)
  return 0
}

/** Whether the amount may be signed: above a cent `--max` or the user allows it. */
async function isAllowed(terms: Terms.Terms, options: Options): Promise<boolean> {
  const { max } = options
  const { amountAtomic, asset, payTo } = terms
  if (max !== undefined || amountAtomic <= Amount.fromDecimal(most.unasked, asset.decimals))
    return true
  if (await isYes(options, `Pay ${Terms.describe(terms)} to ${payTo}? [y/N] `)) return true
  say('turnpike: nothing was paid')
  return false
}

async function isYes({ ask }: Options, text: string): Promise<boolean> {
  return /^\s*y(es)?\s*$/i.test((await ask?.(text)) ?? '')
}

async function payBy(
  terms: Terms.Terms,
  purchase: BuyRequest,
  { privateKey, payer }: Wallet,
  permit?: Credential.PermitInfo,
): Promise<{ credential: Credential.Credential; response: Response }> {
  say(`402        ${Terms.describe(terms)}`)
  say(`pays       ${payer} -> ${terms.payTo}`)
  const random = crypto.getRandomValues(new Uint8Array(32))
  const input = { privateKey, now: purchase.now(), random, ...(permit && { permit }) }
  const credential = Credential.from(terms, input)
  return { credential, response: await present(purchase, credential) }
}

/**
 * Whether the server refused because Permit2 is not approved: nothing was paid then. Leaves the
 * body readable. Resource servers on the reference middleware answer 412.
 */
async function lacksAllowance(response: Response, { method }: Terms.Terms): Promise<boolean> {
  if (method !== 'permit2' || (response.status !== 402 && response.status !== 412)) return false
  return (await readAnswerText(response.clone())).includes('permit2_allowance_required')
}

/** The ways to pay a 402. Throws a PayError when the request itself would be refused. */
async function read(asked: Response): Promise<Terms.Terms[]> {
  const body = await readAnswerText(asked)
  const invalid = invalidParams(body)
  if (invalid !== '') throw new PayError(`The request would be refused: ${invalid}.`)
  return Terms.decode(asked.headers, body)
}

/** The faults of the request itself, which a 402 names before a payment. */
function invalidParams(body: string): string {
  try {
    const params = Json.member(Json.parse(body), 'invalidParams')
    const objects = Array.isArray(params) ? params.filter(Json.isObject) : []
    return oneLine(objects.map((param) => `${param.name}: ${param.reason}`).join('; '))
  } catch {
    // Not JSON, or a member such as `{ "toString": 1 }`, which has no text.
    return ''
  }
}

/**
 * The first terms that are wanted, within the limit, and covered by the wallet, or by a channel of it. A request
 * with a voucher that had no answer is paid by the channel of that voucher only. Throws a PayError that lists what
 * was offered.
 */
async function choose(
  offered: readonly Terms.Terms[],
  purchase: BuyRequest,
  wallet: Buyer | undefined,
): Promise<Terms.Terms> {
  if (offered.length === 0) throw new PayError('The 402 has no offer that this buyer can pay.')
  const wanted = offered
    .filter((terms) => isWanted(terms, purchase))
    // Prefer terms that need no approval.
    .toSorted((a, b) => Number(a.method === 'permit2') - Number(b.method === 'permit2'))
  if (wanted.length === 0) throw new PayError('The 402 does not offer that. It offers:', offered)
  const { max } = purchase
  const [first, ...others] = wanted.filter(
    ({ amountAtomic, asset }) => amountAtomic <= Amount.fromDecimal(max.amount, asset.decimals),
  )
  if (first === undefined) throw new PayError(`${max.exceeded}:`, wanted)
  if (wallet === undefined) return first
  const { payer } = wallet
  if (first.scheme === 'channel') {
    const only = begunOf(wallet.files, payer, idOf(purchase))
    const open = [first, ...others].find((terms) =>
      only ? channelsOf({ ...wallet, terms, only }).length > 0 : hasChannel({ ...wallet, terms }),
    )
    if (open !== undefined) return open
    if (only !== undefined)
      throw new PayError(
        `This request was not answered, and its voucher is of a channel that is not offered any more: ` +
          `get back what is left by turnpike channels close ${only}.`,
      )
  }
  const chosen = await chooseFunded([first, ...others], payer, wallet.rpc)
  if ('asset' in chosen) return chosen
  const held = new Set(
    chosen.map(({ terms, balanceAtomic }) => {
      return `${Terms.amountOf(terms, balanceAtomic)} on ${terms.network}`
    }),
  )
  throw new PayError(
    `The wallet ${payer} has too little: ${[...held].join(', ')}. It is asked for:`,
    [first, ...others],
  )
}

function isWanted(terms: Terms.Terms, { wanted }: BuyRequest): boolean {
  const { protocol, scheme, network, transfer } = wanted
  return (
    terms.scheme === scheme &&
    (protocol === undefined || terms.source.kind === protocol) &&
    (network === undefined || terms.network === network) &&
    (transfer === undefined || terms.method === transfer)
  )
}

async function send(
  purchase: BuyRequest,
  headers: Readonly<Record<string, string>>,
): Promise<Response> {
  const { url, method, body } = purchase
  try {
    return await fetch(url, {
      method,
      headers: {
        'accept-encoding': 'identity',
        ...(body === undefined ? {} : { 'content-type': typeOf(body) }),
        ...headers,
      },
      // A credential is for this URL, so it must not follow a redirect.
      redirect: 'manual',
      ...(body === undefined ? {} : { body }),
    })
  } catch (error) {
    const reason = error instanceof Error ? error.message : 'unknown error'
    throw new PayError(`${url.origin} did not answer: ${reason}`)
  }
}

function typeOf(body: string): string {
  try {
    JSON.parse(body)
    return 'application/json'
  } catch {
    return 'text/plain; charset=utf-8'
  }
}

/**
 * Sends a credential. Sends the same one again while the server answers that its settlement is
 * pending or unknown, or when the connection breaks. Never signs a second payment.
 */
async function present(
  purchase: BuyRequest,
  { header, value }: Pick<Credential.Credential, 'header' | 'value'>,
  // With the key, a lost answer is sent again instead of being refused as spent.
  key: string = crypto.randomUUID(),
): Promise<Response> {
  const until = purchase.now() + pendingMs
  const headers = { [header]: value, 'idempotency-key': key }
  for (;;) {
    let waitMs = 2000
    let response: Response | undefined
    try {
      response = await send(purchase, headers)
      if (response.status !== 503 && response.status !== 409) return response
      const retryAfter = response.headers.get('retry-after')
      if (retryAfter === null) return response
      waitMs = Math.min(Math.max(Number(retryAfter) || 2, 1), 30) * 1000
    } catch (error) {
      if (!(error instanceof PayError) || purchase.now() + waitMs >= until) throw error
      say(`waits      ${error.message}`)
    }
    if (response !== undefined) {
      if (purchase.now() + waitMs >= until) return response
      const problem = await problemOf(response)
      say(`waits      ${problem.code}${problem.transaction ? `, ${problem.transaction}` : ''}`)
    }
    await Bun.sleep(waitMs)
  }
}

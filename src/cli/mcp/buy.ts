import { encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Charge from '../buy/Charge'
import * as Credential from '../buy/Credential'
import { chooseFunded } from '../buy/funds'
import * as Terms from '../buy/Terms'
import { CommandError } from '../Command'
import * as Answer from './Answer'
import {
  ask,
  type BuyerOptions,
  type CallResult,
  type Context,
  microsOf,
  pendingCodes,
  refusal,
  served,
  type Wanted,
  withNote,
} from './call'
import { callByChannel, mayUseChannel } from './channel'
import { createEntitlements } from './entitlements'
import { findFates } from './evidence'
import { GatewayError } from './gateway'
import type { Tool } from './Listing'
import * as Sentences from './Sentences'
import {
  callIdOf,
  type GatewayWallet,
  type Payment,
  type Spending,
  SpendingError,
  type Stored,
} from './spending'
import * as Text from './Text'

export function createBuyer(options: BuyerOptions) {
  const { spending, rpc } = options
  const turns = new Map<string, Promise<unknown>>()
  let reconciling: Promise<void> | undefined
  const reconcile = () => {
    reconciling ??= lower(spending, rpc).finally(() => {
      reconciling = undefined
    })
    return reconciling
  }
  const entitlements = createEntitlements(options)
  const context: Context = { ...options, reconcile, entitlements }
  return {
    /** Lowers what counts today by what the chain proves. */
    reconcile,
    /** Calls a tool and pays for it within the limits. Never signs twice for an unfinished call. */
    async call(wanted: Wanted, signal: AbortSignal): Promise<CallResult> {
      if (wanted.name === budgetTool.name) {
        await reconcile()
        return describeBudget(options, entitlements.describe())
      }
      const id = callIdOf(options, wanted.name, Json.canonicalize(wanted.args))
      try {
        return await inTurn(turns, id, () => call(context, wanted, id, signal))
      } catch (error) {
        if (error instanceof SpendingError) return refusal(Sentences.stateFails(error.message))
        throw error
      }
    },
  }
}

async function lower(spending: Spending, rpc: string | undefined): Promise<void> {
  const fates = await findFates(spending.unsettled(), rpc)
  for (const [id, fate] of fates) spending.settle(id, fate)
}

/** Equal calls run one after the other: the second one must see the payment of the first. */
function inTurn<T>(
  turns: Map<string, Promise<unknown>>,
  key: string,
  run: () => Promise<T>,
): Promise<T> {
  const task = (turns.get(key) ?? Promise.resolve()).then(run, run)
  const settled = task.then(
    () => undefined,
    () => undefined,
  )
  turns.set(key, settled)
  settled.then(() => {
    if (turns.get(key) === settled) turns.delete(key)
  })
  return task
}

async function call(
  context: Context,
  wanted: Wanted,
  id: string,
  signal: AbortSignal,
): Promise<CallResult> {
  const { gateway, spending } = context
  const unfinished = spending.findUnfinished(id)
  if (unfinished) {
    const presented = await present(context, wanted, unfinished, signal)
    if (!presented.isExpired) return presented
  }
  let answer: Answer.Answer
  try {
    const params = { name: wanted.name, arguments: wanted.args }
    answer = Answer.of(await gateway.request('tools/call', params, signal))
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error
    return refusal(Sentences.unreachable(error.message))
  }
  if (answer.kind === 'offers') {
    const { required, invalidParams } = answer
    const isValid = invalidParams === ''
    const used = isValid && (await context.entitlements.use(id, { ...wanted, required, signal }))
    return used || buy(context, wanted, { id, answer, signal })
  }
  return withNote(answer.result, '[turnpike] Nothing was paid.')
}

type Offered = {
  id: string
  answer: Extract<Answer.Answer, { kind: 'offers' }>
  signal: AbortSignal
}

async function buy(
  context: Context,
  wanted: Wanted,
  { id, answer, signal }: Offered,
): Promise<CallResult> {
  const { spending, limits, now } = context
  if (answer.invalidParams !== '') return refusal(Sentences.invalidArguments(answer.invalidParams))
  const offered = Terms.ofRequired(answer.required)
  let chosen = await choose(context, wanted, offered)
  if (typeof chosen === 'string') return refusal(chosen)
  if (chosen.scheme === 'channel') {
    try {
      return await callByChannel(context, wanted, { id, terms: chosen, signal })
    } catch (error) {
      if (!(error instanceof CommandError) || error instanceof SpendingError) throw error
      // A channel is a convenience: what cannot be bought by it is bought without.
      const others = offered.filter(({ scheme }) => scheme !== 'channel')
      if (context.scheme === 'channel') return refusal(`${error.message} Nothing was delivered.`)
      chosen = await choose(context, wanted, others)
      if (typeof chosen === 'string') return refusal(chosen)
    }
  }
  const payment = sign(context, wanted, id, chosen)
  let reserved = spending.reserve(payment, limits.perDayMicros)
  if (reserved.kind === 'limit') {
    await context.reconcile()
    reserved = spending.reserve(payment, limits.perDayMicros)
  }
  if (reserved.kind === 'limit') {
    const { spentMicros } = reserved
    return refusal(Sentences.dayIsSpent(chosen, { spentMicros, limits, now: now() }))
  }
  return present(context, wanted, reserved.payment, signal)
}

/** The terms to pay, or why none of them is paid. */
async function choose(
  context: Context,
  { name }: Wanted,
  offered: readonly Terms.Terms[],
): Promise<Terms.Terms | string> {
  const { limits, scheme = 'channel', network, catalogue, payer, rpc } = context
  const payable: Terms.Terms[] = []
  for (const terms of offered) {
    const isByChannel = terms.scheme === 'channel' && scheme === 'channel'
    const isWanted =
      (terms.scheme === 'exact' && context.scheme !== 'channel') ||
      (terms.scheme === 'upto' && scheme === 'upto') ||
      (isByChannel && (await mayUseChannel(context, terms)))
    if (isWanted && (network === undefined || terms.network === network)) payable.push(terms)
  }
  const wanted = payable.toSorted((a, b) => rankOf(a, scheme) - rankOf(b, scheme))
  if (wanted.length === 0) return Sentences.cannotPay(offered, network)
  const [first, ...others] = wanted.filter((each) => microsOf(each) <= limits.perCallMicros)
  if (first === undefined) return Sentences.tooDear(wanted, limits)
  const terms = await chooseFunded([first, ...others], payer, rpc)
  if (!('asset' in terms)) return Sentences.hasTooLittle(payer, terms)
  const listed = catalogue.priceOf(name)
  const micros = microsOf(terms)
  if (listed !== undefined && micros > listed) {
    catalogue.notePrice(name, micros)
    return Sentences.dearerThanListed(terms, listed)
  }
  return terms
}

/** The wanted scheme first, then what needs no approval. */
function rankOf(terms: Terms.Terms, scheme: Terms.Scheme): number {
  return (terms.scheme === scheme ? 0 : 2) + (terms.method === 'eip3009' ? 0 : 1)
}

function sign(
  { privateKey, now }: Context,
  { name, args }: Wanted,
  call: string,
  terms: Terms.Terms,
): Payment {
  const random = crypto.getRandomValues(new Uint8Array(32))
  const { value, transfer } = Credential.from(terms, { privateKey, now: now(), random })
  const { network, asset, payer, payee, nonce, validBefore } = transfer
  return {
    id: crypto.randomUUID(),
    call,
    tool: name,
    args: Json.canonicalize(args),
    network,
    asset,
    method: terms.method,
    scheme: terms.scheme,
    payer,
    payee,
    nonce,
    signedMicros: microsOf(terms),
    amount: Terms.amountOf(terms),
    validBefore: Number(validBefore),
    credential: Buffer.from(value, 'base64').toString(),
  }
}

/** Clocks of chains differ from ours by less. */
const expiryMarginMs = 30_000
const laterCodes = ['not-ready', 'paused', 'budget-spent', 'rate-limited', 'internal-error']
const lostCodes = [
  'redeem-exhausted',
  'invalid-redeem-token',
  'payment-mismatch',
  'idempotency-conflict',
]
const usedReasons = ['invalid_exact_evm_nonce_already_used', 'permit2_invalid_nonce']

/** Presents a signed payment, in the one form that was stored, until its end is known. */
async function present(
  context: Context,
  wanted: Wanted,
  payment: Stored,
  signal: AbortSignal,
): Promise<CallResult> {
  const answer = await ask(context, wanted, payment, signal)
  if (answer instanceof GatewayError) return failed(context, payment, answer)
  switch (answer.kind) {
    case 'delivered':
      return delivered(context, payment, answer)
    case 'offers': {
      const { code, reason } = answer.problem
      if (code === 'invalid-challenge' && usedReasons.includes(reason))
        return end(context, payment, Sentences.spent(payment))
      return refused(context, payment, answer.problem)
    }
    case 'problem':
      return ofProblem(context, payment, answer.problem)
    case 'free': {
      const text = Json.member(answer.result, 'isError') === true && firstText(answer.result)
      if (text === false) return delivered(context, payment, answer)
      return refused(context, payment, problemOf(text))
    }
  }
}

function failed(context: Context, payment: Stored, error: GatewayError): CallResult {
  if (error.kind === 'refused') return refused(context, payment, problemOf(error.message))
  const text = Sentences.unknown(payment, error.message)
  // Otherwise an answer that can never be read would block this call forever.
  if (error.kind === 'unusable' && isExpired(context, payment)) return end(context, payment, text)
  return refusal(text)
}

function ofProblem(context: Context, payment: Stored, problem: Answer.Problem): CallResult {
  const { code, redeem, transaction, reason } = problem
  if (redeem !== undefined && redeem.attempts > 0) {
    const { token, until } = redeem
    const kept = { token, until }
    context.spending.update(payment.id, { state: 'redeemable', transaction, redeem: kept })
    return refusal(Sentences.redeemable({ ...payment, redeem: kept }, problem))
  }
  if (redeem !== undefined || lostCodes.includes(code))
    return end(context, payment, Sentences.lost(payment, problem), transaction)
  if (pendingCodes.includes(code)) return refusal(Sentences.pending(payment, problem))
  if (laterCodes.includes(code)) return refusal(Sentences.notNow(payment, problem))
  if (payment.scheme === 'upto' && reason === 'delivery_failed')
    return end(context, payment, Sentences.uncharged(payment, problem))
  return refused(context, payment, problem)
}

/** Gives the payment up for its call. It counts until the chain proves that it is void. */
function end(
  { spending }: Context,
  { id }: Stored,
  text: string,
  transaction?: string | undefined,
): CallResult {
  spending.update(id, { state: 'over', transaction })
  return refusal(text)
}

/** A payment that was refused may still be settled until it expires: no other is signed before. */
function refused(context: Context, payment: Stored, problem: Answer.Problem): CallResult {
  const text = Sentences.refused(payment, problem)
  if (payment.redeem !== undefined || !isExpired(context, payment)) return refusal(text)
  context.spending.update(payment.id, { state: 'over' })
  return { ...refusal(text), isExpired: true }
}

function isExpired({ now }: Context, { validBefore }: Stored): boolean {
  return now() > validBefore * 1000 + expiryMarginMs
}

function delivered(
  context: Context,
  payment: Stored,
  answer: { result: Json.JsonObject; settled?: Json.JsonObject | undefined },
): CallResult {
  const { result, settled } = answer
  const transaction = Answer.transactionOf(settled)
  context.spending.update(payment.id, { state: 'delivered', transaction })
  return served(context, payment, result, { paid: paidOf(payment, settled), transaction })
}

/** The cost of a call: with `upto`, the charge that the gateway names, within the ceiling. */
function paidOf(payment: Stored, settled: Json.JsonObject | undefined): string {
  const { scheme, amount, network, signedMicros } = payment
  if (scheme === 'exact') return `${amount} on ${network}`
  const charge = settled && Charge.ofResponse(encodeJson(settled))
  if (charge === undefined || charge.amountAtomic > signedMicros)
    return `up to ${amount} on ${network}`
  const symbol = amount.split(' ').at(-1)
  const charged = Sentences.dollars(charge.amountAtomic)
  return `${charged} ${symbol} of at most ${amount} on ${network}`
}

function firstText(result: Json.JsonObject): string {
  const [first] = Answer.contentOf(result)
  return typeof first?.text === 'string' ? first.text : ''
}

function problemOf(detail: string): Answer.Problem {
  return { code: 'refused', detail, reason: '', transaction: undefined, redeem: undefined }
}

/** The tool that reports what the wallet may still spend. */
export const budgetTool: Tool = {
  name: 'turnpike_budget',
  title: 'What the wallet may spend',
  description:
    'Says what was spent today, the limits, when they reset, and which calls were paid and not ' +
    'answered yet. Costs nothing.',
  inputSchema: { type: 'object', properties: {}, additionalProperties: false },
  annotations: { readOnlyHint: true, destructiveHint: false, openWorldHint: true },
}

const argumentsMax = 400
const unfinishedMax = 10

/** What the wallet has spent and may spend. */
export function describeBudget(
  buyer: Pick<BuyerOptions, 'spending' | 'limits' | 'payer' | 'now'> & GatewayWallet,
  entitlements: readonly string[] = [],
): CallResult {
  const { spending, limits, payer, gateway, now } = buyer
  const { spentMicros, payments } = spending.today()
  const left = limits.perDayMicros - spentMicros
  // The file is shared: calls at other gateways count, but only those of this gateway are listed.
  const isOwn = ({ call, tool, args }: Stored) => call === callIdOf(buyer, tool, args)
  const unfinished = spending.unfinished().filter(isOwn).slice(0, unfinishedMax)
  const lines = [
    `The wallet ${payer} pays for the tools of ${gateway.origin}.`,
    `Limits: ${limits.perCall} USD for one call, ${limits.perDay} USD a day (UTC).`,
    `Today: ${Sentences.dollars(spentMicros)} USD in ${payments} payments, ` +
      `${Sentences.dollars(left > 0n ? left : 0n)} USD left. Resets at ${Sentences.resetOf(now())}.`,
    ...unfinished.map(describeUnfinished),
    ...entitlements,
  ]
  return { content: [Answer.note(lines.join('\n'))] }
}

function describeUnfinished({ state, tool: name, args, amount }: Stored): string {
  const what = state === 'redeemable' ? 'paid and not delivered' : 'signed, its end is not known'
  return (
    `Unfinished, ${what}: ${name} with ${Text.line(args, argumentsMax)}, ${amount}. The same call ` +
    'costs nothing more.'
  )
}

import { existsSync } from 'node:fs'
import type { Hex } from 'viem'
import * as Amount from '../../protocol/Amount'
import * as Channel from '../../protocol/Channel'
import { encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { settleByChain } from '../mcp/evidence'
import { time } from '../mcp/Sentences'
import { openSpending } from '../mcp/spending'
import { askChain, withClient } from '../nodes'
import { poll } from '../poll'
import { sendCall } from './allowance'
import { judge, readChannel, refresh, replyOf } from './by-channel'
import { type Open, openChannelFiles, stateFile } from './channel-files'
import { isAmount, payKeyIn, type Signer } from './key'
import { hashText, oneLine } from './outcome'
import * as Terms from './Terms'
import * as Voucher from './Voucher'

type Options = Run<'channels'>

const instead = '--withdraw gets it back without the merchant.'

/** How long a node may take to show what came back, ms. */
const shownMs = 30_000

/** Lists the payment channels of this user, or closes one. Returns the exit code. */
export async function channels(options: Options): Promise<number> {
  const { verb, amount, withdraw, rpc, out } = options
  if (verb !== 'close' && (amount !== undefined || withdraw))
    throw new CommandError('--amount and --withdraw are for channels close.')
  if (amount !== undefined && (!isAmount(amount) || Number(amount) === 0))
    throw new CommandError('--amount is an amount such as 0.25.')
  const files = openChannelFiles(stateFile(options))
  if (verb !== 'close') return list(files.list(), options)
  const signer = payKeyIn(options.env, 'set PAY_KEY.')
  const id = choose(files.list(), options, signer.payer)
  const code = await files.use(id, async (held) => {
    if (held.state === undefined) return undefined
    const known = await refresh(held.state, held.state, rpc)
    const onChain = await withClient(known.network, rpc, (client) => readChannel(client, known))
    const { balanceAtomic, claimedAtomic, withdrawEndsAt } = onChain
    const chargedAtomic = Amount.greatest(known.chargedAtomic, claimedAtomic)
    const open = { ...held, state: { ...known, balanceAtomic, chargedAtomic } }
    if (withdrawEndsAt === undefined && Voucher.restOf(open.state) === 0n) {
      out('Nothing is left in this channel.')
      await record(open, options, 0n)
    } else if (withdraw) await withdrawRest(open, options, signer, withdrawEndsAt)
    else await refund(open, options, signer)
    return 0
  })
  if (code !== undefined) return code
  throw new CommandError(`Another process uses ${id}: try again when it has ended.`)
}

async function list(states: readonly Voucher.State[], options: Options): Promise<number> {
  const { rpc, out } = options
  const shown: object[] = []
  for (const state of states) {
    const id = Voucher.idOf(state)
    const { network, url, config } = state
    const onChain = await askChain(network, rpc, (client) => readChannel(client, state))
    const balanceAtomic = onChain?.balanceAtomic ?? state.balanceAtomic
    const left = textOf(state, Voucher.restOf({ ...state, balanceAtomic }))
    const [balance, charged] = [textOf(state, balanceAtomic), textOf(state, state.chargedAtomic)]
    const claimed = onChain && textOf(state, onChain.claimedAtomic)
    const ends = onChain?.withdrawEndsAt && time(onChain.withdrawEndsAt)
    const { payer, receiver, token: asset } = config
    const numbers = { left, balance, charged, claimed: claimed ?? null, withdrawal: ends ?? null }
    shown.push({ id, network, payer, receiver, asset, url, ...numbers })
    if (options.json) continue
    out(`${id}  ${network}  ${left} of ${balance} are left`)
    out(`  ${oneLine(url)}, payer ${payer}`)
    out(
      `  charged ${charged}, ${claimed === undefined ? 'its node does not answer' : `claimed ${claimed}`}`,
    )
    if (ends !== undefined)
      out(`  a withdrawal has begun: close it again with --withdraw after ${ends}`)
  }
  if (options.json) out(JSON.stringify(shown))
  else if (states.length === 0) out('There are no channels.')
  return 0
}

function choose(states: readonly Voucher.State[], { operand, verb }: Options, payer: string): Hex {
  const own = states.filter(({ config }) => config.payer === payer).map(Voucher.idOf)
  const found = operand === verb ? own : own.filter((id) => id.startsWith(operand.toLowerCase()))
  const [id, other] = found
  if (id !== undefined && other === undefined) return id
  if (id === undefined) throw new CommandError(`The wallet ${payer} has no such channel here.`)
  throw new CommandError(`Name one of ${found.join(', ')}.`)
}

/** Asks the merchant for what is left, by a GET to a URL that was bought. */
async function refund(open: Open, options: Options, { privateKey }: Signer): Promise<void> {
  const { rpc } = options
  let { state } = open
  const offered = await ask(state.url)
  const terms = offered.required && Voucher.termsOf(state, offered.required)
  if (terms === undefined)
    throw new CommandError(`${state.url} does not offer this channel any more; ${instead}`)
  const amountAtomic = atomicOf(state, options.amount)
  const before = state.balanceAtomic
  for (let tries = 1; ; tries++) {
    const payment = Voucher.sign(state, terms, privateKey, { refund: { amountAtomic } })
    const reply = await ask(state.url, { 'payment-signature': encodeJson(payment) })
    const { settled, required } = reply
    if (settled?.success === true) {
      const hash = hashText(Json.text(settled, 'transaction') ?? '')
      return finish({ ...open, state }, options, hash, before)
    }
    const { next, fault, isCorrected } = await judge(state, undefined, reply, rpc)
    open.save(next)
    state = next
    if (isCorrected && tries === 1) continue
    const said = (name: string) => Json.text(settled ?? required ?? {}, name)
    const why = fault ?? oneLine(said('error') ?? said('errorReason') ?? '')
    throw new CommandError(`The merchant refunds nothing (${why || reply.end}); ${instead}`)
  }
}

/** What a request to a merchant says. Throws a CommandError when it does not answer. */
async function ask(url: string, headers: Record<string, string> = {}): Promise<Voucher.Reply> {
  try {
    // A credential is for this URL, so it must not follow a redirect.
    const response = await fetch(url, { headers, redirect: 'manual' })
    const reply = await replyOf(response)
    await response.body?.cancel()
    return reply
  } catch {
    throw new CommandError(`${new URL(url).origin} did not answer; ${instead}`)
  }
}

/**
 * Records what came back: what the chain shows less than before. The logs of a transaction prove less,
 * because a merchant may name an older refund again.
 */
async function finish(
  open: Open,
  options: Options,
  hash: string,
  beforeAtomic: bigint,
): Promise<void> {
  const { state } = open
  const { rpc, now, out } = options
  const isLess = (atomic: bigint) => atomic < beforeAtomic
  const balanceAtomic = await withClient(state.network, rpc, (client) => {
    const read = async () => (await readChannel(client, state)).balanceAtomic
    return poll({ now, waitMs: shownMs }, read, isLess)
  })
  if (!isLess(balanceAtomic))
    throw new CommandError(`The node does not show that ${hash} gave something back.`)
  const returned = beforeAtomic - balanceAtomic
  out(`${textOf(state, returned)} came back, in transaction ${hash}`)
  await record({ ...open, state: { ...state, balanceAtomic, isClosing: false } }, options, returned)
}

/** Records what is left of a channel. Its calls are given up when that is nothing and no deposit may arrive. */
async function record(open: Open, options: Options, returned: bigint): Promise<void> {
  const { rpc, now, out, env } = options
  const { state } = open
  const { deposit } = state
  // A deposit that arrives pays the vouchers that were signed before.
  const isEmpty = deposit === undefined && Voucher.restOf(state) === 0n
  // So would a later one, and their requests may be paid otherwise until then.
  const isOpen = state.sent.some(({ signedAtomic }) => signedAtomic > state.chargedAtomic)
  let isClosing = state.isClosing || (isEmpty && isOpen)
  const file = stateFile({ state: options.state, env })
  if (existsSync(file)) {
    const spending = openSpending(file, now)
    await settleByChain(spending, rpc)
    spending.refund(Voucher.idOf(state), returned)
    if (isEmpty && spending.leave(Voucher.idOf(state))) isClosing = true
    spending.close()
  }
  if (isEmpty && !isClosing) open.forget()
  else open.save({ ...state, isClosing, sent: isEmpty ? [] : state.sent })
  if (deposit === undefined) return
  const amount = textOf(state, deposit.amountAtomic)
  out(`A deposit of ${amount} is signed, and may arrive until ${time(deposit.until * 1000)}.`)
  out('Run the same command again some minutes after that.')
}

/** The contract's own withdrawal: begins it, or ends it when the delay is over. */
async function withdrawRest(
  open: Open,
  options: Options,
  signer: Signer,
  withdrawEndsAt: number | undefined,
): Promise<void> {
  const { state } = open
  const { rpc, now, out } = options
  const chainId = Network.chainIdOf(state.network) ?? 0
  await withClient(state.network, rpc, async (client) => {
    const send = (call: Channel.Call) =>
      sendCall(client, { ...signer, rpc, now }, { chainId, ...call })
    if (withdrawEndsAt !== undefined) {
      const ends = time(withdrawEndsAt)
      if (now() <= withdrawEndsAt)
        throw new CommandError(`The withdrawal ends at ${ends}: run this again after that.`)
      const hash = await send(Channel.finalizeWithdrawCall(state.config))
      return finish(open, options, hash, state.balanceAtomic)
    }
    const rest = atomicOf(state, options.amount) ?? Voucher.restOf(state)
    const hash = await send(Channel.initiateWithdrawCall(state.config, rest))
    open.save({ ...state, isClosing: true })
    const ends = time((Math.ceil(now() / 1000) + state.config.withdrawDelay) * 1000)
    out(`The withdrawal of ${textOf(state, rest)} has begun, in transaction ${hash}`)
    out(`Run the same command again after ${ends}.`)
  })
}

/** `0.490000 USDC`, or atomic units of an unknown asset. */
function textOf({ network, config }: Voucher.State, atomic: bigint): string {
  const asset = Terms.known(network, config.token)
  if (asset === undefined) return `${atomic}`
  return `${Amount.toDecimal(atomic, asset.decimals)} ${asset.symbol}`
}

function atomicOf({ network, config }: Voucher.State, amount: string | undefined) {
  const decimals = Terms.known(network, config.token)?.decimals ?? 6
  return amount === undefined ? undefined : Amount.fromDecimal(amount, decimals)
}

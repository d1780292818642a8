import {
  type Address,
  concat,
  encodeAbiParameters,
  encodeFunctionData,
  getAddress,
  type Hex,
  maxUint256,
  parseAbi,
  parseAbiParameters,
} from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import type { Id } from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import { deploy } from './chains'
import { type Answer, type Body, post } from './facilitation'
import type { Reference } from './reference'
import { payee, type Shop } from './shop'
import { GreedyWallet, SmartWallet } from './wallets'

/** The same requests to the reference facilitator and to ours, on the same chains. */

export type Operation = 'verify' | 'settle'
export type Verdict = {
  ok: boolean
  code: string
  /** Of a settlement: the settled amount, where it is told, and whether anything was sent. */
  amount?: unknown
  isSent?: boolean
  throws?: boolean
  status: number
}
export type Case<S> = { operation: Operation; spec: S; ours: Verdict; theirs: Verdict }

/** A permitted difference, and what requires it. */
export type Rule<S> = { name: string; by: string; allows(each: Case<S>): boolean }

export const erc20 = parseAbi([
  'function mint(address to, uint256 value)',
  'function approve(address spender, uint256 value) returns (bool)',
])

/** Contracts of account 1: one that accepts its signatures, and one that refuses them. */
export type Wallets = ReadonlyMap<string, Address>

/**
 * Deploys the wallets on every network, by `ID wallet` and `ID refusing`, with money and an allowance.
 * Account 4 delegates to a wallet of its own.
 */
export async function prepareWallets(shop: Shop): Promise<Wallets> {
  const wallets = new Map<string, Address>()
  for (const { id, asset } of shop.config.networks) {
    const chain = shop.chains[id]
    if (chain === undefined) throw new Error(`no ${id}`)
    const owner = account(1).address
    const wallet = await deploy(chain, SmartWallet, [owner])
    const refusing = await deploy(chain, GreedyWallet, [owner, 3])
    const delegate = await deploy(chain, SmartWallet, [account(4).address])
    wallets.set(`${id} wallet`, getAddress(wallet))
    wallets.set(`${id} refusing`, getAddress(refusing))
    await chain.rpc('anvil_setCode', [account(4).address, concat(['0xef0100', delegate])])
    const approve = encodeFunctionData({
      abi: erc20,
      functionName: 'approve',
      args: [Permit.permit2Address, maxUint256],
    })
    const mint = (to: Address) =>
      encodeFunctionData({ abi: erc20, functionName: 'mint', args: [to, 1_000_000n] })
    const run = encodeFunctionData({
      abi: SmartWallet.abi,
      functionName: 'execute',
      args: [asset.address, 0n, approve],
    })
    await chain.rpc('anvil_setBalance', [account(4).address, '0xde0b6b3a7640000'])
    const calls = [
      { from: owner, to: asset.address, data: mint(wallet) },
      { from: owner, to: asset.address, data: mint(refusing) },
      { from: owner, to: wallet, data: run },
      { from: owner, to: refusing, data: run },
      { from: account(4).address, to: asset.address, data: approve },
    ]
    // The node may execute a batch in any order, and so use the owner's nonces in any order.
    for (const call of calls) await execute(chain, [call])
  }
  return wallets
}

const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n

type FormFault = 'lowV' | 'highS' | 'shortSignature' | 'longSignature'

/** A signature in another form; of an undeployed wallet inside its ERC-6492 wrapper. */
export function formOf(text: Hex, has: (fault: FormFault) => boolean, isUndeployed: boolean): Hex {
  let form = text
  if (has('lowV')) form = `${form.slice(0, -2)}${form.endsWith('1b') ? '00' : '01'}` as Hex
  if (has('highS')) {
    const s = (order - BigInt(`0x${text.slice(66, 130)}`)).toString(16).padStart(64, '0')
    form = `${text.slice(0, 66)}${s}${text.endsWith('1b') ? '1c' : '1b'}` as Hex
  }
  if (has('shortSignature')) form = form.slice(0, -2) as Hex
  if (has('longSignature')) form = `${form}00`
  if (!isUndeployed) return form
  return concat([
    encodeAbiParameters(parseAbiParameters('address, bytes, bytes'), [payee, '0x1234', form]),
    `0x${'6492'.repeat(16)}`,
  ])
}

function ofAnswer({ status, json }: Pick<Answer, 'status' | 'json'>): Verdict {
  const ok = json.isValid === true || json.success === true
  const code = String(json.invalidReason ?? json.errorReason ?? '')
  const { success, amount, transaction } = json
  return { ok, code, status, ...(success === true && { amount, isSent: transaction !== '' }) }
}

/** The reference does not tell the amount of `exact`. */
function isSame({ ours, theirs }: Pick<Case<unknown>, 'ours' | 'theirs'>): boolean {
  const isAmount = theirs.amount === undefined || ours.amount === theirs.amount
  const isResult = ours.ok === theirs.ok && ours.code === theirs.code
  return isResult && isAmount && ours.isSent === theirs.isSent
}

type Sent = Parameters<Reference['verify']>

async function askReference(
  reference: Reference,
  operation: Operation,
  body: Body,
): Promise<Verdict> {
  const sent = [body.paymentPayload, body.paymentRequirements] as unknown as Sent
  try {
    return ofAnswer({ status: 200, json: { ...(await reference[operation](...sent)) } })
  } catch (error) {
    return { ok: false, code: String(error), throws: true, status: 500 }
  }
}

export type Comparison<S> = {
  compare(
    operation: Operation,
    all: readonly S[],
  ): Promise<{ counts: ReadonlyMap<string, number>; unexplained: readonly unknown[] }>
  /** Rules that applied to no request yet. */
  unused(): readonly Rule<S>[]
}

/** `bodiesOf`: the request for us, and the one for the reference. */
export function createComparison<S extends object>(
  { shop, reference }: { shop: () => Shop; reference: () => Reference },
  rules: readonly Rule<S>[],
  bodiesOf: (operation: Operation, spec: S) => Promise<readonly [ours: Body, theirs: Body]>,
): Comparison<S> {
  const needed = new Set<string>()
  const ruleOf = (each: Case<S>): string | undefined => {
    if (isSame(each)) return 'same'
    const rule = rules.find(({ allows }) => allows(each))
    if (rule !== undefined) needed.add(rule.name)
    return rule?.name
  }
  return {
    async compare(operation, all) {
      const counts = new Map<string, number>()
      const unexplained: unknown[] = []
      for (const spec of all) {
        const [own, other] = await bodiesOf(operation, spec)
        const [ours, theirs] = await Promise.all([
          post(`${shop().url}/${operation}`, own).then(ofAnswer),
          askReference(reference(), operation, other),
        ])
        const rule = ruleOf({ operation, spec, ours, theirs })
        if (rule === undefined) unexplained.push({ operation, ...spec, ours, theirs })
        else counts.set(rule, (counts.get(rule) ?? 0) + 1)
      }
      return { counts, unexplained }
    },
    unused: () => rules.filter(({ name }) => !needed.has(name)),
  }
}

/** A network of a shop. */
export function networkOf({ config }: Shop, id: Id) {
  const network = config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return network
}

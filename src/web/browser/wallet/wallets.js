// Finds the wallets of the browser (EIP-6963, EIP-1193) and asks them. The files of this folder are one
// script, which runs after script.js and uses its functions. It builds no markup from text.

/** Why a purchase stopped. `label` makes the label of the next attempt from the name of a wallet. */
class Stopped extends Error {
  constructor(message, { details = [], label } = {}) {
    super(message)
    this.details = details
    this.label = label
  }
}

/** What the page says of a fault. */
const told = (error) =>
  error instanceof Stopped
    ? error.message
    : `The wallet said: ${String(error?.message ?? error).slice(0, 300)}`

/** Wallets that announced themselves, by their uuid. */
const wallets = new Map()
addEventListener('eip6963:announceProvider', ({ detail }) => {
  if (typeof detail?.provider?.request !== 'function') return
  wallets.set(String(detail.info?.uuid), { info: detail.info ?? {}, provider: detail.provider })
  dispatchEvent(new Event('turnpike:wallets'))
})
dispatchEvent(new Event('eip6963:requestProvider'))

function walletsNow() {
  const announced = [...wallets.values()]
  const legacy = window.ethereum
  if (announced.length > 0 || typeof legacy?.request !== 'function') return announced
  return [{ info: { name: 'Browser wallet' }, provider: legacy }]
}

/** Icons come from other parties. An image cannot run scripts, and only data URLs are shown. */
function iconOf({ icon }) {
  const isImage = /^data:image\/(png|jpeg|webp|gif|svg\+xml)[;,]/.test(String(icon))
  return isImage && icon.length < 100_000 ? [element('img', { src: icon, alt: '' })] : []
}

/** Sends a request to the wallet. A refusal by the user becomes a text for the user. */
async function ask(provider, method, params, refused, label) {
  try {
    return await provider.request({ method, params })
  } catch (error) {
    if (error?.code === 4001) throw new Stopped(refused, { label })
    throw error
  }
}

async function selectNetwork(provider, network) {
  const chainId = `0x${Number(network.chain).toString(16)}`
  if (Number(await provider.request({ method: 'eth_chainId' })) === Number(network.chain)) return
  const refused = `The wallet stayed on another network. Nothing was paid: switch it to ${network.name}.`
  const label = (name) => `Switch ${name} to ${network.name} and pay`
  try {
    await ask(provider, 'wallet_switchEthereumChain', [{ chainId }], refused, label)
  } catch (error) {
    const isUnknown = error?.code === 4902 || error?.data?.originalError?.code === 4902
    if (!isUnknown || network.rpc === undefined) {
      if (error instanceof Stopped) throw error
      throw new Stopped(
        `The wallet does not know ${network.name}. Nothing was paid: add chain ${network.chain} in its settings, then press the button.`,
        { label },
      )
    }
    const chain = {
      chainId,
      chainName: network.name,
      rpcUrls: [network.rpc],
      nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
    }
    const add = (name) => `Add ${network.name} to ${name} and pay`
    await ask(provider, 'wallet_addEthereumChain', [chain], refused, add)
    await ask(provider, 'wallet_switchEthereumChain', [{ chainId }], refused, label)
  }
  if (Number(await provider.request({ method: 'eth_chainId' })) !== Number(network.chain))
    throw new Stopped(refused, { label })
}

/** A word that a view function of a token answers. */
async function view(provider, to, data) {
  const answer = await provider.request({ method: 'eth_call', params: [{ to, data }, 'latest'] })
  return BigInt(answer === '0x' ? 0 : answer)
}

async function assertFunds(provider, payer, { network, accepted }, hasOthers) {
  const balance = await view(provider, accepted.asset, `0x70a08231${word(payer)}`)
  if (balance >= BigInt(accepted.amount)) return
  const has = decimal(balance, network.decimals)
  const needs = decimal(accepted.amount, network.decimals)
  const other = hasOthers ? ', or choose another network,' : ''
  throw new Stopped(
    `${short(payer)} has ${has} ${network.symbol} on ${network.name}, and the price is ${needs}. Nothing was paid. Add ${network.symbol} to it${other} and try again.`,
    { label: (name) => `Try again with ${name}` },
  )
}

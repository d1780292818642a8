import { parseConfig } from '../../src/config/merchants'
import { payout } from './config'

/** `[stock]` of the shipped file and its network. */
export async function shipped() {
  const file = 'merchants.toml'
  const text = await Bun.file(`${import.meta.dir}/../../${file}`).text()
  const env = { PAYOUT: payout, ASSISTANT_KEY: 'key' }
  const { config, faults } = parseConfig(text, { file, env })
  const network = config?.networks.find(({ id }) => id === config.stock?.network)
  if (config?.stock === undefined || network === undefined) throw new Error(JSON.stringify(faults))
  return { stock: config.stock, network }
}

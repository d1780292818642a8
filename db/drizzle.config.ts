/**
 * `drizzle-kit generate --config db/drizzle.config.ts --name <meaning>` writes the next migration
 * from the tables; migrate.ts lists it afterwards. Works offline.
 */
const config = {
  dialect: 'sqlite',
  schema: './db/schema.ts',
  out: './db/migrations',
}

// biome-ignore lint/style/noDefaultExport: drizzle-kit reads nothing else
export default config

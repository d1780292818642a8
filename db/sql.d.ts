declare module '*.sql' {
  const text: string
  // biome-ignore lint/style/noDefaultExport: the shape of a text import
  export default text
}

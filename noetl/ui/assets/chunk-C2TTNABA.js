import{a,b}from"./chunk-WQK7D3NL.js";import"./chunk-FJ45RBS6.js";import"./chunk-53OLFRBG.js";import"./chunk-WJXEU2RT.js";import"./chunk-TWSSEVJ3.js";export{a as Lineage,b as LineageGraph};
